/* Named by LD_AUDIT while a program is recorded: the dynamic linker says which objects it has mapped, before it relocates
 * them, and what is not writable of them is registered from then on (raw.h). touched.c notes what was touched.
 *
 * Without the C library: it would be loaded a second time, and take of the room for thread-local variables. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "raw.h"

#include <fcntl.h>
#include <link.h>

#define EXPORT __attribute__((visibility("default")))
enum { MAX_SEGMENTS = 128 };

static int watch = -1;
static long owner; /* the process whose userfaultfd that is: a forked child needs its own */

static int is_elf(const ElfW(Ehdr) *header) {
    const unsigned char *magic = header->e_ident;
    return magic[0] == ELFMAG0 && magic[1] == ELFMAG1 && magic[2] == ELFMAG2 && magic[3] == ELFMAG3;
}

/* The headers are read from the file: in memory they may lie in pages that nobody else touches. */
static int read_segments(const char *path, ElfW(Phdr) segments[MAX_SEGMENTS]) {
    ElfW(Ehdr) header;
    long file = tt_raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | TT_O_CLOEXEC, 0, 0);
    if (file < 0) return 0;
    int count = 0;
    if (tt_raw(SYS_pread64, file, (long)&header, sizeof header, 0, 0) == sizeof header && is_elf(&header) &&
        header.e_phentsize == sizeof *segments && header.e_phnum <= MAX_SEGMENTS) {
        long size = (long)header.e_phnum * (long)sizeof *segments;
        if (tt_raw(SYS_pread64, file, (long)segments, size, (long)header.e_phoff, 0) == size) count = header.e_phnum;
    }
    tt_raw(SYS_close, file, 0, 0, 0, 0);
    return count;
}

EXPORT unsigned la_version(unsigned version);
unsigned la_version(unsigned version) { return version; } /* no function of ours differs between them */

EXPORT unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie);
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    ElfW(Phdr) segments[MAX_SEGMENTS];
    (void)cookie;
    if (space != LM_ID_BASE || !map->l_name) return 0;
    long process = tt_raw(SYS_getpid, 0, 0, 0, 0, 0);
    if (owner != process) {
        owner = process;
        watch = tt_new_userfaultfd();
    }
    if (watch < 0) return 0;
    int count = read_segments(*map->l_name ? map->l_name : "/proc/self/exe", segments);
    for (int i = 0; i < count; i++) {
        const ElfW(Phdr) *one = &segments[i];
        if (one->p_type != PT_LOAD || one->p_flags & PF_W || !one->p_memsz) continue;
        for (uintptr_t page = 4096; page <= 65536; page *= 4) { /* the machine's is one of these */
            uintptr_t start = (map->l_addr + one->p_vaddr) & -page;
            uintptr_t end = (map->l_addr + one->p_vaddr + one->p_memsz + page - 1) & -page;
            if (!tt_register(watch, start, end)) break;
        }
    }
    return 0;
}
