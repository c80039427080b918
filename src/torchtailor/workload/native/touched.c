/* Only in the library for LD_PRELOAD: which pages of its libraries a process touches, read from its page tables when it
 * ends. audit.c has made that exact; without it they say some neighbours more.
 *
 * A process may end at any time, by a signal that nobody can catch or by exec. So its memory is read after its end, by a
 * second process that shares the memory and nothing else: no file, no signal, no session, and its parent is not told of
 * its end. As long as the first one lives it waits in the kernel, and nothing waits for it. */
#include "hook.h"
#include "raw.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
enum { PAGE = 4096, AT_ONCE = 4096, STACK = 1 << 18, FEW_FILES = 1 << 16, FIRST_FILES = 256, ROOM = TT_LINE + 256 };

#ifdef __SANITIZE_THREAD__ /* takes the second process for the thread whose memory that shares */
enum { SECOND = 0 };
#else
enum { SECOND = 1 };
#endif

static int output = -1, pipe_of_life[2] = {-1, -1};
static struct {
    int output, life, watch;
} second; /* the second process's own: the first one has closed them */
static int exact, watched; /* whether each page is mapped alone, whether somebody reads them after the end */
static long process; /* the first one */
static _Atomic int leaving; /* exec was called */
static uint8_t stack[STACK] __attribute__((aligned(64)));

/* --- what is mapped, as lines: `map START END OFFSET PATH`, `at FIRST+COUNT ...` in pages of 4 KiB, and `end HOW` */

struct notes {
    int file, tables;
    size_t used;
    uint64_t scale; /* pages of 4 KiB in one of the machine's */
    char text[1 << 15];
};

static void flush(struct notes *notes) {
    for (size_t done = 0; done < notes->used;) {
        ssize_t written = write(notes->file, notes->text + done, notes->used - done);
        if (written <= 0) break;
        done += (size_t)written;
    }
    notes->used = 0;
}

static void add_run(struct notes *notes, uint64_t first, uint64_t count, int *begun) {
    if (notes->used > sizeof notes->text - ROOM) {
        if (*begun) notes->text[notes->used++] = '\n';
        flush(notes);
        *begun = 0;
    }
    notes->used += (size_t)snprintf(notes->text + notes->used, 64, "%s%llx+%llx", *begun ? " " : "at\t",
                                    (unsigned long long)(first * notes->scale), (unsigned long long)(count * notes->scale));
    *begun = 1;
}

/* Of what can be written to, the data of libraries. */
static int is_noted(const struct tt_mapping *mapping) {
    return !mapping->writes || (*mapping->path == '/' && !mapping->is_shared);
}

/* A library's first mapping says where it lies, whether it was touched or not. */
static void note_mapping(const struct tt_mapping *mapping, void *data) {
    static uint64_t entries[AT_ONCE];
    struct notes *notes = data;
    if (!is_noted(mapping)) return;
    uint64_t size = PAGE * notes->scale, pages = (mapping->end - mapping->start) / size, first = 0, count = 0;
    int begun = 0;
    if (notes->used > sizeof notes->text - ROOM) flush(notes);
    notes->used += (size_t)snprintf(notes->text + notes->used, 80, "map\t%llx\t%llx\t%llx\t",
                                    (unsigned long long)mapping->start, (unsigned long long)mapping->end,
                                    (unsigned long long)mapping->offset);
    size_t named = tt_put(notes->text + notes->used, 0, mapping->path);
    notes->used += named;
    notes->text[notes->used++] = '\n';
    for (uint64_t at = 0; at < pages; at += AT_ONCE) {
        size_t wanted = pages - at < AT_ONCE ? (size_t)(pages - at) : AT_ONCE;
        off_t place = (off_t)((mapping->start / size + at) * sizeof *entries);
        ssize_t got = pread(notes->tables, entries, wanted * sizeof *entries, place);
        for (size_t i = 0; got > 0 && i < (size_t)got / sizeof *entries; i++) {
            if (!(entries[i] >> 62)) continue; /* neither in memory nor swapped out */
            if (count && first + count == at + i) {
                count++;
                continue;
            }
            if (count) add_run(notes, first, count, &begun);
            first = at + i;
            count = 1;
        }
    }
    if (count) add_run(notes, first, count, &begun);
    if (begun) notes->text[notes->used++] = '\n';
}

static void write_notes(int file) {
    static struct notes notes;
    tt_busy++; /* what is opened here is not the program's */
    notes.file = file;
    notes.tables = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    notes.scale = (uint64_t)sysconf(_SC_PAGESIZE) / PAGE;
    if (notes.tables >= 0) {
        tt_each_mapping(note_mapping, &notes);
        notes.used += (size_t)snprintf(notes.text + notes.used, 32, "end\t%s\n", exact ? "exact" : "neighbours");
        flush(&notes);
        close(notes.tables);
    }
    tt_busy--;
}

/* --- the second process; until the first one has ended it must not touch errno, which is the first one's */

/* All files but three: its own two, and the userfaultfd, for a program that closes whatever is open. */
static void close_others(void) {
    int kept[] = {second.output, second.life, second.watch};
    int refused = 0;
    for (int from = 0;;) {
        int next = INT_MAX;
        for (int i = 0; i < 3; i++)
            if (kept[i] >= from && kept[i] < next) next = kept[i];
        if (next > from) refused |= tt_raw(SYS_close_range, from, next - 1, 0, 0, 0) < 0;
        if (next == INT_MAX) break;
        from = next + 1;
    }
    for (int file = 0; refused && file < FEW_FILES; file++) /* before Linux 5.9 */
        if (file != kept[0] && file != kept[1] && file != kept[2]) tt_raw(SYS_close, file, 0, 0, 0, 0);
}

static int wait_and_write(void *unused) {
    (void)unused;
    tt_raw(SYS_setsid, 0, 0, 0, 0, 0); /* what is done to the program's group is not meant for us */
    close_others();
    long life = tt_raw(SYS_pidfd_open, process, 0, 0, 0, 0);
    struct pollfd files[2] = {{.fd = second.life, .events = 0}, {.fd = (int)life, .events = POLLIN}};
    struct timespec soon = {.tv_nsec = 100000000};
    while (tt_raw(SYS_getppid, 0, 0, 0, 0, 0) == process) {
        /* Without a pidfd (before Linux 5.3) its end is looked for. */
        tt_raw(SYS_ppoll, (long)files, 2, life < 0 ? (long)&soon : 0, 0, 0);
        if (files[1].fd >= 0 && files[1].revents) break;
        if (files[0].fd >= 0 && files[0].revents) {
            if (atomic_load(&leaving)) break; /* the pipe was closed by exec: the memory is ours alone */
            files[0].fd = -1;                 /* or by a program that closes whatever is open */
        }
    }
    write_notes(second.output);
    return 0;
}

/* --- the program */

static int opened_output(void) {
    char path[PATH_MAX], end[48];
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now); /* after exec a process has the same number and start */
    snprintf(end, sizeof end, "-%llx%08lx.pages", (unsigned long long)now.tv_sec, (unsigned long)now.tv_nsec);
    if (!tt_record_name(path, end)) return -1;
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
}

static void watch_own(const struct tt_mapping *mapping, void *data) {
    if (is_noted(mapping) && *mapping->path) tt_register(*(const int *)data, mapping->start, mapping->end);
}

/* The userfaultfd that audit.c has opened, or -1. */
static int find_watch(void) {
    static const char name[] = "anon_inode:[userfaultfd]";
    for (int file = 0; file < FIRST_FILES; file++) {
        char link[32], what[sizeof name] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        if (readlink(link, what, sizeof what) == sizeof name - 1 && !memcmp(what, name, sizeof name - 1)) return file;
    }
    return -1;
}

/* At the start of a process, and in a forked child: its page tables have nothing of what its parent touched, and its
 * parent's userfaultfd is not for it. */
void tt_watch_pages(int in_child) {
    if (!SECOND) return;
    tt_busy++;
    for (int i = 0; i < 2; i++)
        if (in_child && pipe_of_life[i] >= 0) close(pipe_of_life[i]);
    if (in_child && output >= 0) close(output);
    watched = 0;
    process = tt_raw(SYS_getpid, 0, 0, 0, 0, 0);
    int watch = !in_child ? find_watch() : exact ? tt_new_userfaultfd() : -1;
    exact = watch >= 0;
    if (in_child && exact) tt_each_mapping(watch_own, &watch);
    output = opened_output();
    pipe_of_life[0] = pipe_of_life[1] = -1;
    if (output >= 0 && process != 1 && !pipe2(pipe_of_life, O_CLOEXEC)) {
        sigset_t all, before;
        second.output = output;
        second.life = pipe_of_life[0];
        second.watch = watch;
        flock(output, LOCK_SH | LOCK_NB); /* as long as it is held there is something to come */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        watched = clone(wait_and_write, stack + STACK, CLONE_VM, NULL) > 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        close(pipe_of_life[0]);
        pipe_of_life[0] = -1;
        if (watched) {
            close(output);
            output = -1;
        }
    }
    tt_busy--;
}

/* At the end, if nobody does it afterwards: where there is no second process. */
void tt_note_pages(void) {
    if (output < 0 || tt_is_copy()) return;
    write_notes(output);
    close(output);
    output = -1;
}

/* As init does: signals go on to the program, whatever has ended is reaped. What reads the program's pages is among it. */
static _Noreturn void wait_as_first(long program, const sigset_t *all) {
    struct timespec patience = {.tv_sec = 5}; /* what the program leaves behind may never end */
    int code = 0, state, number = SIGCHLD;
    signal(SIGCHLD, SIG_DFL);
    for (;;) {
        long ended;
        while ((ended = waitpid(-1, &state, WNOHANG | __WALL)) > 0) {
            if (ended != program) continue;
            code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
            program = 0;
        }
        if (!program && (ended < 0 || number < 0)) break;
        number = sigtimedwait(all, NULL, program ? NULL : &patience);
        if (program && number > 0 && number != SIGCHLD) kill((pid_t)program, number);
    }
    for (;;) tt_raw(SYS_exit_group, code, 0, 0, 0, 0);
}

/* All others end with the first process of a container, also what would read its pages. So its child becomes the program,
 * and it waits: whether we are that child. What of libraries was touched so far is in the memory of the first alone. */
int tt_leave_first(void) {
    struct stat threads; /* two more links than threads, which fork would lose */
    if (!SECOND || tt_raw(SYS_getpid, 0, 0, 0, 0, 0) != 1) return 0;
    tt_busy++;
    int in_child = 0;
    if (!tt_raw(SYS_newfstatat, AT_FDCWD, (long)"/proc/self/task", (long)&threads, 0, 0) && threads.st_nlink == 3) {
        sigset_t all, before;
        exact = find_watch() >= 0;
        output = opened_output();
        tt_note_pages();
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        long program = fork();
        if (program > 0) wait_as_first(program, &all);
        if (!program) {
            in_child = 1;
            tt_after_fork();
            int terminal = open("/dev/tty", O_RDWR | O_CLOEXEC), in_front = tcgetpgrp(terminal) == getpgrp();
            setpgid(0, 0); /* what it sends to its group is not for the first */
            if (in_front) tcsetpgrp(terminal, getpgrp());
            if (terminal >= 0) close(terminal);
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    tt_busy--;
    return in_child;
}

void tt_before_exec(void) {
    if (tt_is_copy() || !tt_recording()) return;
    if (watched) atomic_store(&leaving, 1);
    else tt_note_pages();
}

void tt_after_exec(void) {
    if (!tt_is_copy()) atomic_store(&leaving, 0);
}
