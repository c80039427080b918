/* Only in the library for LD_PRELOAD: which files a program opens, and libraries that bind past us (RTLD_DEEPBIND). */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *torchtailor_dlsym(void *handle, const char *name);

/* --- files */

static int is_of_kernel(const char *path) {
    return !strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5) || !strncmp(path, "/dev/", 5);
}

/* The path from the root, without following links. */
static int absolute(int folder, const char *path, char whole[PATH_MAX]) {
    if (*path == '/') return snprintf(whole, PATH_MAX, "%s", path) < PATH_MAX;
    if (folder == AT_FDCWD) {
        if (!getcwd(whole, PATH_MAX)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, whole, PATH_MAX - 1);
        if (size <= 0) return 0;
        whole[size] = '\0';
    }
    while (path[0] == '.' && path[1] == '/') path += 2;
    size_t used = strlen(whole);
    return snprintf(whole + used, PATH_MAX - used, "%s%s", used > 1 ? "/" : "", path) < (int)(PATH_MAX - used);
}

static _Atomic int loading = 1; /* a library may have been loaded since the objects were last recorded */

static void note(int folder, const char *path, int file) {
    if (!tt_recording() || tt_busy || file < 0 || !path) return;
    int kept = errno;
    tt_busy++;
    char whole[PATH_MAX];
    struct stat info;
    if (!fstat(file, &info) && S_ISREG(info.st_mode) && absolute(folder, path, whole) && !is_of_kernel(whole)) {
        if (tt_is_copy()) {
            tt_record_unlocked(whole);
        } else {
            tt_record_open(whole);
            if (!tt_forked() || atomic_exchange(&loading, 0)) tt_record_objects();
        }
    }
    tt_busy--;
    errno = kept;
}

static int reads(int flags) { return (flags & O_ACCMODE) != O_WRONLY && !(flags & (O_DIRECTORY | O_PATH)); }

TT_EARLY static void *next(const char *name) { return tt_real_symbol(RTLD_NEXT, name); }

/* Looked up when we are loaded: between vfork and exec the loader must not be asked. Until then (an allocator that
 * starts first) files are opened by the kernel directly. */
typedef int (*open_function)(const char *, int, ...);
typedef int (*openat_function)(int, const char *, int, ...);
typedef void (*exit_function)(int);
typedef FILE *(*fopen_function)(const char *, const char *);
typedef int (*execv_function)(const char *, char *const[]);
typedef int (*execve_function)(const char *, char *const[], char *const[]);
typedef int (*spawn_function)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                              char *const[], char *const[]);
typedef int (*stat_function)(const char *, void *);
typedef int (*xstat_function)(int, const char *, void *);
typedef int (*fstatat_function)(int, const char *, void *, int);
typedef int (*access_function)(const char *, int);
typedef int (*statx_function)(int, const char *, int, unsigned, void *);
static _Atomic(stat_function) next_stat, next_stat64;
static _Atomic(xstat_function) next___xstat, next___xstat64;
static _Atomic(fstatat_function) next_fstatat, next_fstatat64;
static _Atomic(access_function) next_access;
static _Atomic(statx_function) next_statx;
static _Atomic(open_function) next_open, next_open64;
static _Atomic(openat_function) next_openat, next_openat64;
static _Atomic(exit_function) next_exit, next_Exit;
static _Atomic(execv_function) next_execv, next_execvp;
static _Atomic(execve_function) next_execve, next_execvpe;
static _Atomic(spawn_function) next_posix_spawn, next_posix_spawnp;
static _Atomic(fopen_function) next_fopen, next_fopen64;

#define FIND(kind, variable, name) atomic_store(&variable, (kind##_function)(uintptr_t)next(name))
__attribute__((constructor)) static void find_next(void) {
    FIND(open, next_open, "open");
    FIND(open, next_open64, "open64");
    FIND(openat, next_openat, "openat");
    FIND(openat, next_openat64, "openat64");
    FIND(exit, next_exit, "_exit");
    FIND(exit, next_Exit, "_Exit");
    FIND(execv, next_execv, "execv");
    FIND(execv, next_execvp, "execvp");
    FIND(execve, next_execve, "execve");
    FIND(execve, next_execvpe, "execvpe");
    FIND(spawn, next_posix_spawn, "posix_spawn");
    FIND(spawn, next_posix_spawnp, "posix_spawnp");
    FIND(fopen, next_fopen, "fopen");
    FIND(fopen, next_fopen64, "fopen64");
    FIND(stat, next_stat, "stat");
    FIND(stat, next_stat64, "stat64");
    FIND(xstat, next___xstat, "__xstat");
    FIND(xstat, next___xstat64, "__xstat64");
    FIND(fstatat, next_fstatat, "fstatat");
    FIND(fstatat, next_fstatat64, "fstatat64");
    FIND(access, next_access, "access");
    FIND(statx, next_statx, "statx");
}

static int open_from(open_function call, const char *path, int flags, mode_t mode) {
    int file = call ? call(path, flags, mode) : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (reads(flags)) note(AT_FDCWD, path, file);
    return file;
}

static int openat_from(openat_function call, int folder, const char *path, int flags, mode_t mode) {
    int file = call ? call(folder, path, flags, mode) : (int)syscall(SYS_openat, folder, path, flags, mode);
    if (reads(flags)) note(folder, path, file);
    return file;
}

static int has_mode(int flags) { return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE; }

#define WITH_MODE(flags)                                                                                               \
    mode_t mode = 0;                                                                                                   \
    if (has_mode(flags)) {                                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = (mode_t)va_arg(rest, unsigned);                                                                         \
        va_end(rest);                                                                                                  \
    }
#define OPEN(name)                                                                                                     \
    TT_EXPORT int name(const char *path, int flags, ...) {                                                             \
        WITH_MODE(flags) return open_from(atomic_load(&next_##name), path, flags, mode);                               \
    }                                                                                                                  \
    TT_EXPORT int __##name##_2(const char *path, int flags);                                                           \
    int __##name##_2(const char *path, int flags) {                                                                    \
        return open_from(atomic_load(&next_##name), path, flags, 0);                                                   \
    }
#define OPENAT(name)                                                                                                   \
    TT_EXPORT int name(int folder, const char *path, int flags, ...) {                                                 \
        WITH_MODE(flags) return openat_from(atomic_load(&next_##name), folder, path, flags, mode);                     \
    }                                                                                                                  \
    TT_EXPORT int __##name##_2(int folder, const char *path, int flags);                                               \
    int __##name##_2(int folder, const char *path, int flags) {                                                        \
        return openat_from(atomic_load(&next_##name), folder, path, flags, 0);                                         \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                                    \
    TT_EXPORT FILE *name(const char *path, const char *mode) {                                                         \
        fopen_function call = atomic_load(&next_##name);                                                               \
        if (!call) call = (fopen_function)(uintptr_t)next(#name);                                                      \
        FILE *file = call(path, mode);                                                                                 \
        if (file && mode && (*mode == 'r' || strchr(mode, '+'))) note(AT_FDCWD, path, fileno(file));                   \
        return file;                                                                                                   \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* --- files that are looked for and not opened: without them a program may refuse to start */

/* Not those that every import looks for. */
static void note_looked(int folder, const char *path, int result) {
    if (result || !tt_recording() || tt_busy || !path || tt_is_copy()) return;
    const char *last = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *dot = strrchr(last, '.');
    if (!*last || strstr(last, ".so") || (dot && (!strcmp(dot, ".py") || !strcmp(dot, ".pyc")))) return;
    int kept = errno;
    tt_busy++;
    char whole[PATH_MAX];
    struct stat info;
    if (absolute(folder, path, whole) && !is_of_kernel(whole) && !syscall(SYS_newfstatat, AT_FDCWD, whole, &info, 0) &&
        S_ISREG(info.st_mode))
        tt_record_looked(whole);
    tt_busy--;
    errno = kept;
}

#define LOOKED(name, kind, declaration, arguments, folder, path)                                                       \
    TT_EXPORT int tt_own_##name declaration __asm__(#name);                                                            \
    int tt_own_##name declaration {                                                                                    \
        kind##_function call = atomic_load(&next_##name);                                                              \
        if (!call) call = (kind##_function)(uintptr_t)next(#name);                                                     \
        if (!call) {                                                                                                   \
            errno = ENOSYS;                                                                                            \
            return -1;                                                                                                 \
        }                                                                                                              \
        int result = call arguments;                                                                                   \
        note_looked(folder, path, result);                                                                             \
        return result;                                                                                                 \
    }
LOOKED(stat, stat, (const char *path, void *info), (path, info), AT_FDCWD, path)
LOOKED(stat64, stat, (const char *path, void *info), (path, info), AT_FDCWD, path)
LOOKED(__xstat, xstat, (int version, const char *path, void *info), (version, path, info), AT_FDCWD, path)
LOOKED(__xstat64, xstat, (int version, const char *path, void *info), (version, path, info), AT_FDCWD, path)
LOOKED(fstatat, fstatat, (int folder, const char *path, void *info, int flags), (folder, path, info, flags), folder, path)
LOOKED(fstatat64, fstatat, (int folder, const char *path, void *info, int flags), (folder, path, info, flags), folder, path)
LOOKED(access, access, (const char *path, int mode), (path, mode), AT_FDCWD, path)
LOOKED(statx, statx, (int folder, const char *path, int flags, unsigned mask, void *info),
       (folder, path, flags, mask, info), folder, path)

/* --- programs: the kernel opens them, and a static one has no hook */

static void note_program(const char *path) {
    if (!tt_recording() || tt_busy || !path) return;
    int kept = errno;
    tt_busy++;
    char whole[PATH_MAX];
    if (absolute(AT_FDCWD, path, whole) && !is_of_kernel(whole) && !access(whole, X_OK)) tt_record_unlocked(whole);
    tt_busy--;
    errno = kept;
}

/* The first of this name in PATH, as execvp finds it. */
static void note_named(const char *name) {
    const char *folders = getenv("PATH");
    if (!name || strchr(name, '/') || !folders) {
        note_program(name);
        return;
    }
    for (const char *end; *folders; folders = *end ? end + 1 : end) {
        char path[PATH_MAX];
        end = strchrnul(folders, ':');
        int size = snprintf(path, sizeof path, "%.*s/%s", (int)(end - folders), folders, name);
        if (size > 0 && size < PATH_MAX && *folders == '/' && !access(path, X_OK)) {
            note_program(path);
            return;
        }
    }
}

#define EXECV(name, noting)                                                                                            \
    TT_EXPORT int name(const char *path, char *const arguments[]) {                                                    \
        execv_function call = atomic_load(&next_##name);                                                               \
        noting(path);                                                                                                  \
        tt_before_exec();                                                                                              \
        int result = (call ? call : (execv_function)(uintptr_t)next(#name))(path, arguments);                          \
        tt_after_exec();                                                                                               \
        return result;                                                                                                 \
    }
#define EXECVE(name, noting)                                                                                           \
    TT_EXPORT int name(const char *path, char *const arguments[], char *const variables[]) {                           \
        execve_function call = atomic_load(&next_##name);                                                              \
        noting(path);                                                                                                  \
        tt_before_exec();                                                                                              \
        int result = (call ? call : (execve_function)(uintptr_t)next(#name))(path, arguments, variables);              \
        tt_after_exec();                                                                                               \
        return result;                                                                                                 \
    }
#define SPAWN(name, noting)                                                                                            \
    TT_EXPORT int name(pid_t *restrict pid, const char *restrict path,                                                 \
                       const posix_spawn_file_actions_t *restrict actions, const posix_spawnattr_t *restrict settings, \
                       char *const arguments[restrict], char *const variables[restrict]) {                             \
        spawn_function call = atomic_load(&next_##name);                                                               \
        noting(path);                                                                                                  \
        return (call ? call : (spawn_function)(uintptr_t)next(#name))(pid, path, actions, settings, arguments,         \
                                                                      variables);                                      \
    }
EXECV(execv, note_program)
EXECV(execvp, note_named)
EXECVE(execve, note_program)
EXECVE(execvpe, note_named)
SPAWN(posix_spawn, note_program)
SPAWN(posix_spawnp, note_named)

/* --- the end: libraries that were loaded last */

__attribute__((destructor)) static void finish(void) {
    tt_record_objects();
    tt_note_pages();
}

#define EXIT(name)                                                                                                     \
    TT_EXPORT _Noreturn void name(int status) {                                                                        \
        void (*call)(int) = atomic_load(&next##name);                                                                  \
        if (!tt_busy && !tt_is_copy()) finish();                                                                       \
        if (call) call(status);                                                                                        \
        for (;;) syscall(SYS_exit_group, status);                                                                      \
    }
EXIT(_exit)
EXIT(_Exit)

/* --- RTLD_DEEPBIND: such a library calls the C library's dlsym, not ours */

typedef void *(*dlopen_function)(const char *, int);

/* Since glibc 2.34 it is in libc itself. */
static const void *c_library_dlsym(dlopen_function open_library) {
    static const char *const names[] = {"libdl.so.2", "libc.so.6"};
    const void *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        void *handle = open_library(names[i], RTLD_LAZY | RTLD_NOLOAD);
        if (handle) found = tt_real_symbol(handle, "dlsym"); /* we need it: it stays */
    }
    return found;
}

__attribute__((used, visibility("hidden"))) void *tt_dlopen_deepbound(const char *name, int flags) {
    dlopen_function open_library = (dlopen_function)(uintptr_t)next("dlopen");
    size_t before = tt_object_count();
    const void *past_us = c_library_dlsym(open_library);
    void *handle = open_library(name, flags);
    if (handle && past_us) tt_lead_deepbound_here(before, past_us, torchtailor_dlsym);
    return handle;
}

/* dlopen looks at its caller as dlsym does: only a name that says where the file is can be opened from here. */
TT_EARLY __attribute__((used, visibility("hidden"))) void *tt_choose_dlopen(const char *name, int flags) {
    atomic_store(&loading, 1);
    if (name && flags & RTLD_DEEPBIND && strchr(name, '/')) return (void *)(uintptr_t)tt_dlopen_deepbound;
    return next("dlopen");
}

#if defined __x86_64__
#define TAIL                                                                                                           \
    "  endbr64\n  pushq %rdi\n  .cfi_adjust_cfa_offset 8\n  pushq %rsi\n  .cfi_adjust_cfa_offset 8\n"                  \
    "  subq $8, %rsp\n  .cfi_adjust_cfa_offset 8\n  call tt_choose_dlopen\n  addq $8, %rsp\n"                          \
    "  .cfi_adjust_cfa_offset -8\n  popq %rsi\n  .cfi_adjust_cfa_offset -8\n  popq %rdi\n"                             \
    "  .cfi_adjust_cfa_offset -8\n  jmp *%rax\n"
#else
#define TAIL                                                                                                           \
    "  hint #34\n  stp x29, x30, [sp, #-32]!\n  .cfi_def_cfa_offset 32\n  .cfi_offset 29, -32\n  .cfi_offset 30, -24\n" \
    "  mov x29, sp\n  stp x0, x1, [sp, #16]\n  bl tt_choose_dlopen\n  mov x16, x0\n  ldp x0, x1, [sp, #16]\n"          \
    "  ldp x29, x30, [sp], #32\n  .cfi_restore 29\n  .cfi_restore 30\n  .cfi_def_cfa_offset 0\n  br x16\n"
#endif
__asm__(".text\n.p2align 4\n.globl dlopen\n.type dlopen, %function\ndlopen:\n  .cfi_startproc\n" TAIL
        "  .cfi_endproc\n.size dlopen, .-dlopen\n");
