/* Does what its arguments say, one after the other; the exit status is 0 if all could be done. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
typedef int (*load_function)(int, const char *);
static void *handle;
static int last_result;

static void *must(void *pointer, const char *what) {
    if (pointer) return pointer;
    const char *error = dlerror();
    fprintf(stderr, "program: %s: %s\n", what, error ? error : strerror(errno));
    exit(3);
}

struct work { load_function load; int count, offset; const char *how; pthread_barrier_t *start; };
static void *in_thread(void *data) {
    struct work *work = data;
    pthread_barrier_wait(work->start);
    for (int i = 0; i < work->count; i++)
        if (work->load((i + work->offset) % work->count, work->how)) abort();
    return NULL;
}

static void threads(int count, int codes, const char *how) {
    pthread_t all[64];
    struct work work[64];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        work[i] = (struct work){(load_function)must(dlsym(handle, "load"), "load"), codes, i % codes, how, &start};
        if (pthread_create(&all[i], NULL, in_thread, &work[i])) abort();
    }
    for (int i = 0; i < count; i++) pthread_join(all[i], NULL);
}

static volatile int stop;
static void *open_all_the_time(void *path) {
    while (!stop) {
        int file = open(path, O_RDONLY);
        if (file >= 0) close(file);
    }
    return NULL;
}

/* Children that begin while other threads are inside the hook. */
static void forks(int count, const char *path) {
    pthread_t busy[2];
    for (int i = 0; i < 2; i++) pthread_create(&busy[i], NULL, open_all_the_time, (void *)path);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (!child) {
            int file = open(path, O_RDONLY);
            _exit(file < 0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) exit(5);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(busy[i], NULL);
}

/* --- forks while other threads load libraries */

enum { PATIENCE = 10 }; /* seconds until a child counts as hanging */
static volatile pid_t child_now;
static void end_child(int signal_number) { kill(child_now, SIGKILL); }

struct storm { const char *folder; int first; };
static void *load_all_the_time(void *data) {
    const struct storm *storm = data;
    for (unsigned i = (unsigned)storm->first; !stop; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/storm%u.so", storm->folder, i % 8);
        void *library = dlopen(path, RTLD_NOW);
        if (library) dlclose(library);
    }
    return NULL;
}

static int open_inside(struct dl_phdr_info *object, size_t size, void *path) {
    int file = open(path, O_RDONLY);
    if (file >= 0) close(file);
    return 1;
}

static void *list_all_the_time(void *path) {
    while (!stop) dl_iterate_phdr(open_inside, path);
    return NULL;
}

/* Each child opens a file, hands code to the driver if that is asked for, and leaves; prints how many did not end. */
static void storm(int count, const char *folder, const char *how) {
    enum { LOADERS = 3 };
    pthread_t loaders[LOADERS], lister;
    struct storm storms[LOADERS];
    char file_path[4096];
    snprintf(file_path, sizeof file_path, "%s/storm0.so", folder);
    load_function load = how ? (load_function)must(dlsym(handle, "load"), "load") : NULL;
    for (int i = 0; i < LOADERS; i++) {
        storms[i] = (struct storm){folder, 3 * i};
        pthread_create(&loaders[i], NULL, load_all_the_time, &storms[i]);
    }
    pthread_create(&lister, NULL, list_all_the_time, file_path);
    signal(SIGALRM, end_child);
    int hung = 0, wrong = 0;
    for (int i = 0; i < count; i++) {
        /* every fourth without the handlers of fork, where what the child does is safe without them */
        pid_t child = !load && i % 4 == 3 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
        if (!child) {
            int file = open(file_path, O_RDONLY);
            _exit(file < 0 || (load && load(i % 2, how)));
        }
        int status = 0;
        child_now = child;
        alarm(PATIENCE);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
        alarm(0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) hung++;
        else if (status) wrong++;
    }
    stop = 1;
    for (int i = 0; i < LOADERS; i++) pthread_join(loaders[i], NULL);
    pthread_join(lister, NULL);
    printf("%d forks, %d hung, %d wrong\n", count, hung, wrong);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *word = strdup(argv[i]), *value = strchr(word, '=');
        char *second = NULL, *third = NULL;
        if (value) *value++ = '\0';
        if (value && (second = strchr(value, ','))) *second++ = '\0';
        if (second && (third = strchr(second, ','))) *third++ = '\0';
        if (!strcmp(word, "open")) handle = must(dlopen(value, RTLD_NOW), value);
        else if (!strcmp(word, "lazy")) handle = must(dlopen(value, RTLD_LAZY), value);
        else if (!strcmp(word, "global")) handle = must(dlopen(value, RTLD_NOW | RTLD_GLOBAL), value);
        else if (!strcmp(word, "deep")) handle = must(dlopen(value, RTLD_NOW | RTLD_DEEPBIND), value);
        else if (!strcmp(word, "close")) dlclose(handle);
        else if (!strcmp(word, "load")) {
            last_result = ((load_function)must(dlsym(handle, "load"), "load"))(atoi(value), second);
            printf("%d\n", last_result);
        } else if (!strcmp(word, "memory")) {
            FILE *file = must(fopen(value, "r"), value);
            char *code = must(calloc(1, 1 << 20), "memory");
            size_t size = fread(code, 1, 1 << 20, file);
            fclose(file);
            char *fit = malloc(size); /* what lies behind is not the program's */
            memcpy(fit, code, size);
            printf("%d\n", ((int (*)(const void *))must(dlsym(handle, "load_memory"), "load_memory"))(fit));
        } else if (!strcmp(word, "call")) ((void (*)(void))must(dlsym(handle, value), value))();
        else if (!strcmp(word, "ask")) {
            const char *(*ask)(const char *) = (const char *(*)(const char *))must(dlsym(RTLD_DEFAULT, value), value);
            printf("%s\n", ask(second));
        } else if (!strcmp(word, "default")) {
            void *found = dlsym(RTLD_DEFAULT, value);
            const char *error = dlerror();
            printf("%s %s\n", found ? "found" : "not found", error ? "error" : "no error");
        } else if (!strcmp(word, "inside")) { /* is it in the library that was opened, and not before it */
            Dl_info info;
            void *found = dlsym(handle, value);
            printf("%s\n", found && dladdr(found, &info) ? info.dli_fname : "nowhere");
        } else if (!strcmp(word, "threads")) threads(atoi(value), atoi(second), third);
        else if (!strcmp(word, "forks")) forks(atoi(value), second);
        else if (!strcmp(word, "storm")) storm(atoi(value), second, third);
        else if (!strcmp(word, "fork")) {
            pid_t child = fork();
            int status = 0;
            if (child) {
                waitpid(child, &status, 0);
                return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
            }
        } else if (!strcmp(word, "spawn")) {
            pid_t child;
            int status;
            char *arguments[64] = {argv[0]};
            memcpy(arguments + 1, argv + i + 1, sizeof *argv * (size_t)(argc - i));
            if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ)) return 4;
            waitpid(child, &status, 0);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
        } else if (!strcmp(word, "read")) close(open(value, O_RDONLY));
        else if (!strcmp(word, "write")) close(open(value, O_WRONLY | O_CREAT, 0600));
        else if (!strcmp(word, "stream")) fclose(must(fopen(value, "r"), value));
        else if (!strcmp(word, "at")) close(openat(open(value, O_RDONLY | O_DIRECTORY), second, O_RDONLY));
        else if (!strcmp(word, "mode")) {
            struct stat info;
            int file = open(value, O_RDWR | O_CREAT, 0640);
            if (fstat(file, &info)) return 4;
            printf("%o\n", info.st_mode & 0777);
        } else if (!strcmp(word, "truncate")) { if (truncate(value, atol(second))) return 4; }
        else if (!strcmp(word, "rewrite")) { /* in place, from an offset on */
            struct stat info;
            int file = open(value, O_WRONLY);
            if (file < 0 || fstat(file, &info)) return 4;
            for (off_t at = atol(second); at < info.st_size; at++)
                if (pwrite(file, "x", 1, at) != 1) return 4;
            close(file);
        } else if (!strcmp(word, "rename")) { if (rename(value, second)) return 4; }
        else if (!strcmp(word, "closeall")) { for (int file = 3; file < 1024; file++) close(file); }
        else if (!strcmp(word, "chdir")) { if (chdir(value)) return 4; }
        else if (!strcmp(word, "set")) setenv(value, second, 1);
        else if (!strcmp(word, "leave")) { fflush(stdout); _exit(atoi(value)); }
        else { fprintf(stderr, "program: what is %s?\n", word); return 2; }
        fflush(stdout);
        free(word);
    }
    return 0;
}
