/* Pages of libraries that were cut to what a program touched: mapped back from packs.
 *
 * A cut library calls torchtailor_host_pages before anything else of it runs, and before anything of the libraries that are
 * loaded with it does: as its last relocation, for which the dynamic linker has relocated what it needs, and us, before.
 * Where its pack is there, the pages are mapped whole, and that is all. Else those that are left in the library are mapped
 * from there, which the loader did not do: there are thousands of pieces in a large stack. Code whose pack is compressed,
 * or not there yet, is waited for with a handler of SIGSEGV: it unpacks what a thread runs into, or looks for the pack
 * again. Data has to be there at once: the kernel reads it too, and a system call that meets a page without access fails
 * without a signal.
 *
 * What is called from the handler uses no function that may not be used there: no malloc, no stdio, no lock but ours. */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LIBRARIES = 1024, MAX_RETRIES = 10000, MAX_SEGMENTS = 1 << 16, MAX_RUNS = 1 << 17 };
enum { MAX_TABLE = 1 << 23, BLOCK = 1 << 20, OUT_OF_THE_WAY = 200, EXIT_LOADER = 127, TICK = 20 /* ms */ };
enum { AT_LOAD = 0x100, AGAIN = 1 /* added to a table's address by a library's initialiser */ };

/* As workload/host_table.py writes it. */
struct head {
    uint8_t identity[16];
    uint64_t address, offset; /* of itself, in memory and in the file */
    uint32_t page, count, runs, pieces, size, joined;
};
struct row {
    uint64_t address, size;
    uint8_t key[TT_KEY];
    uint64_t flags;
};
struct run {
    uint64_t start, end;
};
struct piece { /* that is left in the file */
    uint64_t start, end, offset;
};
/* As workload/pack.py does. */
struct pages {
    uint8_t magic[8], key[TT_KEY];
    uint64_t size;
    uint32_t block, blocks, index_crc, unused[4], crc;
};
enum { CONTENT = 1 /* added to the start of memory that is joined: it is copied */ };
struct block {
    uint64_t offset;
    uint32_t size, crc;
};
_Static_assert(sizeof(struct head) == 56 && sizeof(struct row) == 40 && sizeof(struct pages) == 64, "as Python has them");

enum state { UNUSED, MISSING, PACKED, WHOLE };
struct segment {
    uint64_t at;    /* of its header in the pack */
    uint64_t start; /* of its bytes in memory of our own */
    uint32_t blocks;
};
struct library {
    _Atomic int state, retries;
    uintptr_t base, start, end;
    const struct head *table; /* a copy: the library may be gone when a signal comes */
    const struct row *rows;
    const struct run *runs;
    const struct piece *pieces;
    const struct run *joined;
    const char *pack, *place;
    struct segment *segments;
    int file, memory; /* the pack; what was unpacked */
    struct stat file_info, memory_info;
    size_t candidates;
    struct candidate {
        const char *path;
        int is_named;
    } *candidate;
    const char *path, *opened, *_Atomic wrong;
};
static struct library *libraries;
static _Atomic int used, handling, spared, stopped, told;
static struct sigaction before;
static uint8_t *packed_block, *whole_block; /* of one block each; with the lock held */

/* --- a lock that a handler can take: recursion is a fault of our own */

static _Atomic long holder;

static long thread_number(void) { return syscall(SYS_gettid); }

static int lock(void) {
    long self = thread_number(), free_ = 0;
    while (!atomic_compare_exchange_weak(&holder, &free_, self)) {
        if (free_ == self) return 0;
        /* A copy of a process has one thread: who held the lock is not in it. */
        if (tt_is_copy() && syscall(SYS_tgkill, syscall(SYS_getpid), free_, 0)) {
            atomic_compare_exchange_strong(&holder, &free_, 0);
        } else {
            struct timespec moment = {0, 50000};
            nanosleep(&moment, NULL);
        }
        free_ = 0;
    }
    return 1;
}

static void unlock(void) { atomic_store(&holder, 0); }

void tt_pages_after_fork(void) {
    atomic_store(&holder, 0);
}

/* --- what is said */

/* What is wrong with its pack; NULL: that it is waited for. */
static void say_about(const struct library *library, const char *wrong) {
    static char line[3 * PATH_MAX];
    const char *words[] = {"torchtailor: ", library->path, " needs pages that were cut out of it and lie in the pack ",
                           library->pack, wrong ? ", but " : ", which is not there yet: waiting for it.", wrong ? wrong : "",
                           wrong ? ". Put the pack into torchtailor-packs beside the library, or name its folder in "
                                   "TORCHTAILOR_PACK, and run again; or run `torchtailor restore`." : ""};
    size_t length = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) length = tt_add_shown(line, length, sizeof line - 1, words[i]);
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) return;
}

/* --- one pack */

static int read_whole(int file, void *into, size_t size, uint64_t offset) {
    for (size_t done = 0; done < size;) {
        ssize_t got = pread(file, (uint8_t *)into + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        done += (size_t)got;
    }
    return 1;
}

/* NULL, or what is wrong; `at` is where the header of the segment is. Only rows on the way to it are read. */
static const char *find_segment(int file, const struct stat *info, const struct row *row, struct pages *found, uint64_t *at) {
    static const char cut_off[] = "it was cut off while it was read", damaged[] = "its table leads to another place";
    enum { HEADER = 64, ROW = 40, PAGES = 1 };
    uint8_t header[HEADER], line[ROW];
    const char *wrong = NULL;
    if (!read_whole(file, header, HEADER, 0)) return "it is shorter than its header";
    if ((wrong = tt_check_pack_header(header, (uint64_t)info->st_size))) return wrong;
    uint32_t low = 0, high = tt_u32(header + 12);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (!read_whole(file, line, ROW, tt_u64(header + 16) + (uint64_t)middle * ROW)) return cut_off;
        int order = memcmp(line, row->key, TT_KEY);
        if (!order) break;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    if (low >= high) return "it is of another build of the library";
    uint64_t offset = tt_u64(line + 16), length = tt_u64(line + 24), whole = (uint64_t)info->st_size;
    if (tt_u32(line + 36) != PAGES || length < sizeof *found || offset > whole || length > whole - offset) return damaged;
    if (!read_whole(file, found, sizeof *found, offset)) return cut_off;
    /* The segment says itself what it is, so that a wrong offset is seen without reading the table whole. */
    if (memcmp(found->magic, "TTPAGES", 8) || memcmp(found->key, row->key, TT_KEY) || found->size != row->size ||
        tt_crc(0, found, sizeof *found - 4) != found->crc)
        return damaged;
    if (!found->blocks && length - sizeof *found != row->size) return damaged;
    if (found->blocks && (found->block != BLOCK || found->blocks != (row->size + BLOCK - 1) / BLOCK)) return damaged;
    if (found->blocks && length - sizeof *found < (uint64_t)found->blocks * sizeof(struct block)) return damaged;
    if (!found->blocks && (offset + sizeof *found) % (uint64_t)sysconf(_SC_PAGESIZE)) return damaged;
    *at = offset;
    return NULL;
}

static int protection(const struct row *row) {
    int runs = row->flags & PF_X ? PROT_EXEC : 0; /* never what can be written to */
    return (row->flags & PF_R ? PROT_READ : 0) | runs | (row->flags & PF_W && !runs ? PROT_WRITE : 0);
}

static const char *map_at(const struct library *library, uint64_t address, uint64_t size, const struct row *row, int file,
                          uint64_t offset) {
    if (mmap((void *)(library->base + address), size, protection(row), MAP_PRIVATE | MAP_FIXED, file, (off_t)offset) !=
        MAP_FAILED)
        return NULL;
    if (errno == EPERM || errno == EACCES) return "nothing may be run from its file system (noexec), or a security policy forbids it";
    return errno == ENOMEM ? "there is no memory, or too many mappings (vm.max_map_count)" : "it cannot be mapped";
}

static int same_file(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

/* An own number, out of the way of those that programs know. */
static int put_away(int file) {
    int high = fcntl(file, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
    if (high < 0) return file;
    close(file);
    return high;
}

/* --- what is unpacked */

static int in_memory(void) {
    enum { CLOSED_ON_EXEC = 1, MAY_RUN = 16 };
    long file = syscall(SYS_memfd_create, "torchtailor-pages", CLOSED_ON_EXEC | MAY_RUN);
    if (file < 0) file = syscall(SYS_memfd_create, "torchtailor-pages", CLOSED_ON_EXEC);
    if (file < 0) return -1;
    if (ftruncate((int)file, sysconf(_SC_PAGESIZE))) return -1;
    void *test = mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, (int)file, 0);
    if (test != MAP_FAILED) {
        munmap(test, 1);
        return (int)file;
    }
    close((int)file);
    return -1;
}

/* A file without a name, where a policy forbids code in memory files. */
static int in_folder(void) {
    const char *named[] = {tt_setting("TORCHTAILOR_CACHE"), tt_setting("XDG_CACHE_HOME"), "/var/tmp", "/tmp", "/dev/shm"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        int file = *named[i] == '/' ? open(named[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
        if (file < 0) continue;
        if (!ftruncate(file, sysconf(_SC_PAGESIZE))) {
            void *test = mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
            if (test != MAP_FAILED) {
                munmap(test, 1);
                return file;
            }
        }
        close(file);
    }
    return -1;
}

/* NULL, or what is wrong. The files may have been closed by a program that closes all that it does not know. */
static const char *open_memory(struct library *library) {
    struct stat now;
    if (library->memory >= 0 && !fstat(library->memory, &now) && same_file(&now, &library->memory_info)) return NULL;
    int file = in_memory();
    if (file < 0) file = in_folder();
    if (file < 0)
        return "it is compressed, and there is neither memory nor a folder to unpack it to that code may be run from "
               "(name one in TORCHTAILOR_CACHE, or use a pack that is not compressed)";
    library->memory = put_away(file);
    fstat(library->memory, &library->memory_info);
    return NULL;
}

static const char *open_again(struct library *library) {
    struct stat now;
    if (library->file >= 0 && !fstat(library->file, &now) && same_file(&now, &library->file_info)) return NULL;
    library->file = open(library->opened, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (library->file < 0) return "it was removed while the program ran";
    library->file = put_away(library->file);
    if (!fstat(library->file, &now) && same_file(&now, &library->file_info)) return NULL;
    close(library->file);
    library->file = -1;
    return "it was replaced while the program ran";
}

static int write_whole(int file, const uint8_t *from, size_t size, uint64_t offset) {
    for (size_t done = 0; done < size;) {
        ssize_t put = pwrite(file, from + done, size - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return 0;
        done += (size_t)put;
    }
    return 1;
}

/* Unpacks one block of a segment and maps what of it is cold. NULL, or what is wrong. With the lock held. */
static const char *unpack(struct library *library, uint32_t number, uint32_t block) {
    static const char damaged[] = "a part of it is damaged";
    const struct row *row = &library->rows[number];
    const struct segment *segment = &library->segments[number];
    struct block place;
    const char *wrong = open_again(library);
    if (!wrong) wrong = open_memory(library);
    if (wrong) return wrong;
    uint64_t start = row->address + (uint64_t)block * BLOCK, end = row->address + row->size;
    if (end - start > BLOCK) end = start + BLOCK;
    if (!read_whole(library->file, &place, sizeof place, segment->at + sizeof(struct pages) + block * sizeof place)) return damaged;
    if (place.size > TT_ZSTD_BOUND(BLOCK) || !read_whole(library->file, packed_block, place.size, segment->at + place.offset))
        return damaged;
    if (tt_unzstd(whole_block, end - start, packed_block, place.size) != end - start ||
        tt_crc(0, whole_block, end - start) != place.crc)
        return damaged;
    for (uint32_t i = 0; i < library->table->runs; i++) {
        uint64_t from = library->runs[i].start > start ? library->runs[i].start : start;
        uint64_t to = library->runs[i].end < end ? library->runs[i].end : end;
        if (from >= to) continue;
        uint64_t at = segment->start + (from - row->address);
        if (!write_whole(library->memory, whole_block + (from - start), to - from, at))
            return "it is compressed, and there is no room to unpack it to";
        if ((wrong = map_at(library, from, to - from, row, library->memory, at))) return wrong;
    }
    return NULL;
}

/* --- what is left in the library's own file */

/* NULL, or what is wrong. The file is the one that was loaded if it has the same table: that names all bytes by hashes. */
static const char *map_pieces(const struct library *library) {
    static const char replaced[] = "the library's own file cannot be read, or was replaced since it was loaded";
    const struct head *table = library->table;
    int file = table->pieces ? open(library->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    const char *wrong = table->pieces && file < 0 ? replaced : NULL;
    uint8_t same[4096];
    for (uint32_t at = 0; file >= 0 && !wrong && at < table->size; at += sizeof same) {
        size_t size = table->size - at < sizeof same ? table->size - at : sizeof same;
        if (!read_whole(file, same, size, table->offset + at) || memcmp(same, (const uint8_t *)table + at, size)) wrong = replaced;
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0, k = 0; !wrong && i < table->pieces; i++) {
        const struct piece *piece = &library->pieces[i];
        while (k < table->count && piece->start - library->rows[k].address >= library->rows[k].size) k++;
        uint64_t extra = piece->start % page;
        if (k == table->count || piece->end <= piece->start || piece->offset % page != extra) wrong = replaced;
        else
            wrong = map_at(library, piece->start - extra, piece->end - piece->start + extra, &library->rows[k], file,
                           piece->offset - extra);
    }
    if (file >= 0) close(file);
    return wrong;
}

/* --- what can be written to */

/* Small pieces of writable memory, and what lies between them, become one mapping with the zeroed memory before them: the
 * kernel joins memory without a file. Done before anything of the library runs, so nobody else writes to it meanwhile. */
static const char *join_writable(const struct library *library) {
    static const char no_memory[] = "there is no memory for its data";
    const char *wrong = NULL;
    for (uint32_t i = 0; i < library->table->joined && !wrong; i++) {
        uint64_t start = library->joined[i].start & ~(uint64_t)CONTENT, size = library->joined[i].end - start;
        void *at = (void *)(library->base + start), *copy = NULL;
        if (library->joined[i].start & CONTENT) {
            if (!(copy = malloc(size))) return no_memory;
            memcpy(copy, at, size);
        }
        if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) wrong = no_memory;
        else if (copy) memcpy(at, copy, size);
        free(copy);
    }
    return wrong;
}

/* --- a library */

static void catch_faults(void);

/* NULL, or why its pages are not there. With the lock held. */
static const char *map_library(struct library *library) {
    const char *wrong = "it is not there", *first = NULL;
    struct pages pages;
    int file = -1;
    for (size_t i = 0; i < library->candidates && file < 0; i++) {
        const char *refused;
        file = tt_open_pack(library->path, library->candidate[i].path, library->candidate[i].is_named, &library->file_info, &refused);
        if (file < 0 && refused) first = first ? first : refused;
        for (uint32_t k = 0; file >= 0 && k < library->table->count; k++) {
            if (!(refused = find_segment(file, &library->file_info, &library->rows[k], &pages, &library->segments[k].at))) {
                library->segments[k].blocks = pages.blocks;
                continue;
            }
            first = first ? first : refused;
            close(file);
            file = -1;
        }
        library->opened = library->candidate[i].path;
    }
    if (file < 0) return first ? first : wrong;
    wrong = library->state != MISSING && library->segments[0].blocks ? map_pieces(library) : NULL;
    int packed = 0;
    uint64_t start = 0;
    library->file = file;
    for (uint32_t k = 0; k < library->table->count && !wrong; k++) {
        struct segment *segment = &library->segments[k];
        const struct row *row = &library->rows[k];
        segment->start = start;
        start += (row->size + 0xFFFF) & ~UINT64_C(0xFFFF);
        if (!segment->blocks) {
            wrong = map_at(library, row->address, row->size, row, file, segment->at + sizeof pages);
        } else if (!packed_block) {
            size_t room = TT_ZSTD_BOUND(BLOCK) + BLOCK + 64; /* a word is read past the end */
            uint8_t *buffers = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (buffers == MAP_FAILED) wrong = strerror(ENOMEM);
            else packed_block = buffers + BLOCK + 32, whole_block = buffers;
        }
        for (uint32_t block = 0; !wrong && row->flags & AT_LOAD && block < segment->blocks; block++)
            wrong = unpack(library, k, block);
        packed |= segment->blocks && !(row->flags & AT_LOAD);
    }
    if (wrong || !packed) {
        close(library->file);
        library->file = -1;
        if (library->memory >= 0) close(library->memory);
        library->memory = -1;
    } else {
        library->file = put_away(file);
    }
    if (!wrong) atomic_store(&library->state, packed ? PACKED : WHOLE);
    return wrong;
}

/* The same, as often as TORCHTAILOR_PACK_WAIT says, in seconds. */
static const char *map_in_time(struct library *library) {
    const char *wrong = map_library(library);
    long left = wrong ? tt_pack_wait() * (1000 / TICK) : 0;
    if (left && !atomic_exchange(&told, 1)) say_about(library, NULL);
    for (; wrong && left > 0; left--) {
        struct timespec moment = {0, TICK * 1000000L};
        nanosleep(&moment, NULL);
        wrong = map_library(library);
    }
    return wrong;
}

/* --- faults */

static struct library *library_at(uintptr_t address, uint32_t *number) {
    for (int i = 0; i < used; i++) {
        struct library *library = &libraries[i];
        if (!library->state || address < library->start || address >= library->end) continue;
        uint64_t at = address - library->base;
        for (uint32_t k = 0; k < library->table->runs; k++) {
            if (at < library->runs[k].start || at >= library->runs[k].end) continue;
            for (uint32_t n = 0; n < library->table->count; n++) {
                *number = n;
                if (at - library->rows[n].address < library->rows[n].size) return library;
            }
        }
    }
    return NULL;
}

/* Whether the instruction can be tried again. */
static int resolve(uintptr_t address) {
    uint32_t number = 0;
    struct library *library = library_at(address, &number);
    if (!library || stopped || !lock()) return 0;
    const char *wrong = NULL;
    if (library->state == MISSING) wrong = map_in_time(library);
    if (!wrong && library->state == PACKED && library->segments[number].blocks)
        wrong = unpack(library, number, (uint32_t)((address - library->base - library->rows[number].address) / BLOCK));
    if (!wrong && atomic_fetch_add(&library->retries, 1) > MAX_RETRIES + (int)((library->end - library->start) / BLOCK))
        wrong = "it faults again and again";
    if (wrong && !atomic_exchange(&stopped, 1)) say_about(library, wrong);
    unlock();
    return !wrong;
}

static int lacking(void) {
    for (int i = 0; i < used; i++)
        if (libraries[i].state == MISSING || libraries[i].state == PACKED) return 1;
    return 0;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    int kept = errno;
    if (info->si_code > 0 && resolve((uintptr_t)info->si_addr)) {
        atomic_store(&spared, 0);
        errno = kept;
        return;
    }
    errno = kept;
    /* Python's faulthandler, where it was enabled later, raises the signal anew, without its address: back to the
     * instruction, whose next fault has it. */
    if (info->si_code == SI_TKILL && info->si_pid == getpid() && !stopped && lacking() && !atomic_exchange(&spared, 1)) return;
    if (before.sa_flags & SA_SIGINFO && before.sa_sigaction) {
        before.sa_sigaction(number, info, context);
    } else if (!(before.sa_flags & SA_SIGINFO) && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        struct sigaction plain = {.sa_handler = SIG_DFL}; /* the instruction faults again: an ordinary death */
        sigaction(SIGSEGV, &plain, NULL);
        if (info->si_code <= 0) raise(SIGSEGV);
    }
    errno = kept;
}

static void catch_faults(void) {
    if (atomic_exchange(&handling, 1)) return;
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &ours, &before);
}

/* --- the call of a library */

static char *keep(const char *text, size_t length) {
    char *copy = malloc(length + 1);
    if (!copy) abort();
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

static void add_candidate(struct library *library, int is_named, const char *folder, size_t length, const char *inner,
                          const char *name) {
    char path[PATH_MAX], real[PATH_MAX];
    if (snprintf(path, sizeof path, "%.*s%s%s%s%s", (int)length, folder, *inner ? "/" : "", inner, *name ? "/" : "", name) >=
        (int)sizeof path)
        return;
    const char *chosen = is_named && realpath(path, real) ? real : path;
    library->candidate = realloc(library->candidate, (library->candidates + 1) * sizeof *library->candidate);
    if (!library->candidate) abort();
    library->candidate[library->candidates].path = keep(chosen, strlen(chosen));
    library->candidate[library->candidates++].is_named = is_named;
}

/* As realpath, which asks of each folder above a path whether it is a link. */
static char *without_links(const char *path, char real[PATH_MAX]) {
    char place[32];
    int file = open(path, O_PATH | O_CLOEXEC);
    if (file < 0) return NULL;
    snprintf(place, sizeof place, "/proc/self/fd/%d", file);
    ssize_t length = readlink(place, real, PATH_MAX - 1);
    close(file);
    if (length <= 0 || *real != '/') return realpath(path, real);
    real[length] = 0;
    return real;
}

static void find_candidates(struct library *library) {
    char real[PATH_MAX];
    const char *slash = strrchr(library->place, '/'), *inner = slash ? slash + 1 : library->place;
    for (const char *named = tt_setting("TORCHTAILOR_PACK"); *named;) {
        size_t length = strcspn(named, ":");
        if (length) {
            add_candidate(library, 1, named, length, "", library->pack);
            add_candidate(library, 1, named, length, inner, library->pack);
            add_candidate(library, 1, named, length, "", "");
        }
        named += length + (named[length] == ':');
    }
    const char *own = strrchr(library->path, '/');
    if (own) add_candidate(library, 0, library->path, (size_t)(own - library->path), library->place, library->pack);
    if (without_links(library->path, real) && strcmp(real, library->path) && (own = strrchr(real, '/')))
        add_candidate(library, 0, real, (size_t)(own - real), library->place, library->pack);
}

static int is_table(const struct head *head) {
    if (!head->count || head->size > MAX_TABLE || head->count > MAX_SEGMENTS || head->runs > MAX_RUNS || head->pieces > MAX_RUNS || head->joined > MAX_RUNS)
        return 0;
    uint64_t room = sizeof *head + (uint64_t)head->count * sizeof(struct row) + (uint64_t)head->pieces * sizeof(struct piece) +
                    ((uint64_t)head->runs + head->joined) * sizeof(struct run);
    return room + 2 <= head->size && !((const char *)head)[head->size - 1];
}

static void point_at(struct library *library, const struct head *table) {
    library->table = table;
    library->rows = (const void *)(table + 1);
    library->runs = (const void *)(library->rows + table->count);
    library->pieces = (const void *)(library->runs + table->runs);
    library->joined = (const void *)(library->pieces + table->pieces);
    library->pack = (const char *)(library->joined + table->joined);
    library->place = library->pack + strlen(library->pack) + 1;
}

static void read_table(struct library *library, const struct head *given) {
    struct head *copy = malloc(given->size);
    if (!copy) abort();
    memcpy(copy, given, given->size);
    point_at(library, copy);
    library->start = UINTPTR_MAX;
    for (uint32_t i = 0; i < copy->count; i++) {
        uintptr_t start = library->base + library->rows[i].address, end = start + library->rows[i].size;
        if (start < library->start) library->start = start;
        if (end > library->end) library->end = end;
    }
    library->segments = calloc(copy->count, sizeof *library->segments);
    if (!library->segments) abort();
}

/* Of the library that holds a table. Not dladdr first: it goes through all symbols, 3 ms in a large library. The loader,
 * which calls us, holds the lock of this list. */
static const char *path_of(const struct head *table, char path[PATH_MAX]) {
    Dl_info info = {0};
    const struct link_map *map = _r_debug.r_map;
    while (map && (map->l_addr != (uintptr_t)table - table->address || !*map->l_name)) map = map->l_next;
    if (map) info.dli_fname = map->l_name;
    else if (!dladdr(table, &info) || !info.dli_fname) return ""; /* in a namespace of its own */
    return *info.dli_fname != '/' && realpath(info.dli_fname, path) ? path : info.dli_fname;
}

/* A process that has a state of its own: one that a library of its own loads has the next place, or that of a library
 * that was closed. */
static struct library *place_for(uintptr_t base) {
    if (!libraries) {
        libraries = mmap(NULL, MAX_LIBRARIES * sizeof *libraries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (libraries == MAP_FAILED) abort();
    }
    int i = 0;
    while (i < used && libraries[i].base != base) i++;
    if (i == MAX_LIBRARIES) return NULL;
    if (i < used) atomic_store(&libraries[i].state, UNUSED); /* closed, and opened again at the same place */
    memset(&libraries[i], 0, sizeof *libraries);
    libraries[i].base = base;
    libraries[i].file = libraries[i].memory = -1;
    return &libraries[i];
}

static int is_known(const struct head *table) {
    uintptr_t base = (uintptr_t)table - table->address;
    for (int i = 0; i < used; i++)
        if (libraries[i].base == base && libraries[i].state) return 1;
    return 0;
}

static void map_or_end(const struct head *head, int is_started) {
    char path[PATH_MAX];
    int at_load = 0;
    struct library *library = place_for((uintptr_t)head - head->address);
    if (!library || !is_table(head)) {
        static const char said[] = "torchtailor: a library says of its pages in a pack what cannot be; install it again.\n";
        if (write(STDERR_FILENO, said, sizeof said - 1) < 0) _exit(EXIT_LOADER);
        _exit(EXIT_LOADER);
    }
    read_table(library, head);
    const char *found = path_of(head, path);
    library->path = keep(found, strlen(found));
    find_candidates(library);
    for (uint32_t i = 0; i < library->table->count; i++) at_load |= (library->rows[i].flags & AT_LOAD) != 0;
    const char *wrong = at_load ? map_in_time(library) : map_library(library);
    if (wrong && !at_load && !(wrong = map_pieces(library))) atomic_store(&library->state, MISSING);
    if (!wrong && library->state == WHOLE && !is_started) wrong = join_writable(library);
    if (wrong) {
        say_about(library, wrong);
        _exit(EXIT_LOADER);
    }
    if (library == &libraries[used]) used++;
    if (library->state != WHOLE) catch_faults();
}

/* What is left in the library's own file, and no more: nothing is allocated, and no setting is read. */
static void map_own_pieces(const struct head *head) {
    char path[PATH_MAX];
    struct library own = {.base = (uintptr_t)head - head->address};
    if (!is_table(head)) return;
    point_at(&own, head);
    own.path = path_of(head, path);
    map_pieces(&own);
}

/* Returns itself: the relocation that calls it stores what it returns where its address was found. A library that a
 * program is started with calls it before the C library is ready: the rest is then done when its initialiser calls. */
TT_EXPORT void *torchtailor_host_pages(const void *table);
void *torchtailor_host_pages(const void *table) {
    int again = (uintptr_t)table & AGAIN;
    const struct head *head = (const void *)((const char *)table - again);
    int kept = errno;
    if (!again && !environ) {
        map_own_pieces(head);
    } else {
        int locked = lock();
        if (!again || !is_known(head)) map_or_end(head, again);
        if (locked) unlock();
    }
    errno = kept;
    return (void *)torchtailor_host_pages;
}
