/* Named by LD_AUDIT while a program is recorded: the dynamic linker says which objects it has mapped, before it relocates
 * them, and what of them is in their files is registered from then on (raw.h). touched.c notes what was touched.
 *
 * Without the C library: it would be loaded a second time, and take of the room for thread-local variables. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "raw.h"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
enum { AT_ONCE = 32 };

static int watch = -1, used; /* whether anything could be registered */
static long owner; /* the process whose userfaultfd that is: a forked child needs its own */

static int is_elf(const ElfW(Ehdr) *header) {
    const unsigned char *magic = header->e_ident;
    return magic[0] == ELFMAG0 && magic[1] == ELFMAG1 && magic[2] == ELFMAG2 && magic[3] == ELFMAG3;
}

/* Of what can be written to the linker has read before: the neighbours of that, which it did not change, are not mapped
 * any more. */
static void forget_neighbours(uintptr_t start, uintptr_t end, uintptr_t page) {
    const uint64_t present = UINT64_C(1) << 63, of_file = UINT64_C(1) << 61;
    uint64_t entries[256];
    long file = tt_raw(SYS_openat, AT_FDCWD, (long)"/proc/self/pagemap", O_RDONLY | TT_O_CLOEXEC, 0, 0);
    if (file < 0) return;
    for (uintptr_t at = start; at < end;) {
        long place = (long)(at / page * sizeof *entries);
        long got = tt_raw(SYS_pread64, file, (long)entries, sizeof entries, place, 0);
        if (got < (long)sizeof *entries) break;
        for (long i = 0; i < got / (long)sizeof *entries && at < end; i++, at += page)
            if ((entries[i] & (present | of_file)) == (present | of_file))
                tt_raw(SYS_madvise, (long)at, (long)page, MADV_DONTNEED, 0, 0);
    }
    tt_raw(SYS_close, file, 0, 0, 0, 0);
}

static void watch_segment(uintptr_t base, const ElfW(Phdr) *one) {
    uint64_t size = one->p_flags & PF_W ? one->p_filesz : one->p_memsz;
    if (one->p_type != PT_LOAD || !size) return;
    for (uintptr_t page = 4096; page <= 65536; page *= 4) { /* the machine's is one of these */
        uintptr_t start = (base + one->p_vaddr) & -page;
        uintptr_t end = (base + one->p_vaddr + size + page - 1) & -page;
        if (tt_register(watch, start, end)) continue;
        used = 1;
        if (one->p_flags & PF_W) forget_neighbours(start, end, page);
        return;
    }
    if (used) return;
    tt_raw(SYS_close, watch, 0, 0, 0, 0); /* then touched.c finds none, and says that neighbours are mapped */
    watch = -1;
}

/* The headers are read from the file: in memory they may lie in pages that nobody else touches. */
static void watch_segments(uintptr_t base, long file) {
    ElfW(Ehdr) header;
    ElfW(Phdr) segments[AT_ONCE];
    if (tt_raw(SYS_pread64, file, (long)&header, sizeof header, 0, 0) != sizeof header || !is_elf(&header)) return;
    if (header.e_phentsize != sizeof *segments) return;
    for (long from = 0; from < header.e_phnum; from += AT_ONCE) {
        long count = header.e_phnum - from < AT_ONCE ? header.e_phnum - from : AT_ONCE;
        long size = count * (long)sizeof *segments, place = (long)header.e_phoff + from * (long)sizeof *segments;
        if (tt_raw(SYS_pread64, file, (long)segments, size, place, 0) != size) return;
        for (long i = 0; i < count && watch >= 0; i++) watch_segment(base, &segments[i]);
    }
}

EXPORT unsigned la_version(unsigned version);
unsigned la_version(unsigned version) { return version; } /* no function of ours differs between them */

EXPORT unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie);
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    (void)cookie;
    if (space != LM_ID_BASE || !map->l_name) return 0;
    long process = tt_raw(SYS_getpid, 0, 0, 0, 0, 0);
    if (owner != process) {
        owner = process;
        used = 0;
        watch = tt_new_userfaultfd();
    }
    if (watch < 0) return 0;
    const char *path = *map->l_name ? map->l_name : "/proc/self/exe";
    long file = tt_raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | TT_O_CLOEXEC, 0, 0);
    if (file < 0) return 0;
    watch_segments(map->l_addr, file);
    tt_raw(SYS_close, file, 0, 0, 0, 0);
    return 0;
}
