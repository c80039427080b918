/* Packs: files of GPU code that was moved out of libraries, found by the library's place and by key. */
#include "hook.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 64, ROW = 40, ALIGNMENT = 64, MAX_PARENTS = 8, MAX_SOURCES = 64, MAX_NOTE = 1 << 14, MAX_NAMES = 1 << 16 };
enum { MAX_ROWS = 1 << 22, MAX_DESCRIPTION = 1 << 24, PAGES = 1 /* the kind of a row */ };
#define MAX_CONTAINER (UINT64_C(1) << 31)
#define FOLDER "torchtailor-packs"
#define SUFFIX ".ttpack"
#define NOTE "split.txt"

/* What is read of a pack is copied, and checked in the copy: the file may be changed, or cut off, while the program
 * runs, and of a mapping that would be seen as other code or as SIGBUS. */
struct pack {
    struct pack *next;
    struct stat info; /* as it was when it was opened */
    int file;
    uint8_t *rows; /* NULL: refused */
    uint32_t count;
    const uint8_t **containers; /* of each row, once it was read */
    int split;                  /* it has all code of its library for one GPU */
    unsigned target;            /* that GPU: 90 for sm_90 */
    char path[];
};
struct note { /* of a distribution whose packs have all code of its libraries */
    struct note *next;
    struct tt_package package;
    char libraries[]; /* a line each */
};

/* Whose files are used. A pack is code: it comes from those who could change the library anyway. */
struct trust {
    uid_t owner;  /* of the library */
    uid_t namer;  /* who else, where the pack or folder was named: of the program, and of what was named */
    uid_t named;
    gid_t groups[2]; /* who may write to the library or replace it */
    size_t group_count;
    int is_named;
};
struct listing { /* a folder's packs, or one file's, as they were when it was first needed */
    struct listing *next;
    struct trust asked, trust; /* as it was asked for, and with what the folder itself says */
    size_t count;
    struct pack **packs;
    struct note *notes;
    unsigned look; /* the look at folders that it is of */
    char path[];
};
struct merged { /* what several packs have for one key */
    struct merged *next;
    size_t count;
    const uint8_t *parts[MAX_SOURCES];
    const void *container;
};
static struct pack *all_packs;
static struct listing *all_listings;
static struct merged *all_merged;
static unsigned looks; /* how often folders were looked at again, for packs that came later */
static int is_quiet;   /* what is refused was said the first time, and is said once more at the end */

/* --- files and folders that may be anyone's */

static int is_trusted_group(const struct trust *trust, gid_t group) {
    for (size_t i = 0; i < trust->group_count; i++)
        if (trust->groups[i] == group) return 1;
    return 0;
}

/* NULL, or why what lies there is not used. */
static const char *distrust(const struct trust *trust, const struct stat *info) {
    int known = !info->st_uid || info->st_uid == trust->owner;
    if (trust->is_named) {
        if (known || info->st_uid == trust->namer || info->st_uid == trust->named) return NULL;
        return "it belongs to another user than its folder, the library and the program";
    }
    if (!known) return "it belongs to another user than the library";
    if (info->st_mode & S_IWOTH) return "every user may write to it";
    if (info->st_mode & S_IWGRP && !is_trusted_group(trust, info->st_gid)) return "other users may write to it";
    return NULL;
}

/* Opens a folder, or a plain file; links are not followed, and nothing waits for who writes into a pipe. -1 and a
 * reason, which is NULL where there is nothing. */
static int open_trusted(int at, const char *name, int is_folder, const struct trust *trust, struct stat *info,
                        const char **wrong) {
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | (is_folder ? O_DIRECTORY : 0), file = -1;
    mode_t kind = is_folder ? S_IFDIR : S_IFREG;
    *wrong = NULL;
    /* First what it is: opening a device may do something. */
    int missing = fstatat(at, name, info, AT_SYMLINK_NOFOLLOW);
    if (!missing && (info->st_mode & S_IFMT) == kind) missing = (file = openat(at, name, flags)) < 0 || fstat(file, info);
    if (missing && (errno == ENOENT || errno == ENOTDIR)) return -1;
    if (missing) *wrong = strerror(errno);
    else if (S_ISLNK(info->st_mode)) *wrong = "it is a link";
    else if ((info->st_mode & S_IFMT) != kind) *wrong = is_folder ? "it is not a folder" : "it is not a plain file";
    else *wrong = distrust(trust, info);
    if (!*wrong) return file;
    if (file >= 0) close(file);
    return -1;
}

static void say_refused(const char *what, const char *path, const char *wrong) {
    if (!is_quiet) tt_say("torchtailor: the %s %s is not used: %s. Give it to the library's owner and nobody else the right to write "
           "there, or name it in TORCHTAILOR_PACK.", what, path, wrong);
}

/* As much as there is up to `size`. */
static size_t read_at(int file, void *into, size_t size, uint64_t offset) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = pread(file, (uint8_t *)into + done, size - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    return done;
}

static uint8_t *new_pages(size_t size) {
    void *pages = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

/* --- one pack */

struct span {
    uint64_t start, size;
};

static int by_start(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size;
}

static int inside(uint64_t offset, uint64_t size, uint64_t whole) { return offset <= whole && size <= whole - offset; }

/* Rows may share a container; anything else that shares bytes is damage. */
static int overlap(const uint8_t *header, const uint8_t *rows, uint32_t count) {
    size_t n = (size_t)count + 3;
    struct span *spans = calloc(n, sizeof *spans);
    if (!spans) return 0;
    spans[0] = (struct span){0, HEADER};
    spans[1] = (struct span){tt_u64(header + 16), (uint64_t)count * ROW};
    spans[2] = (struct span){tt_u64(header + 24), tt_u64(header + 32)};
    for (uint32_t i = 0; i < count; i++)
        spans[3 + i] = (struct span){tt_u64(rows + (size_t)i * ROW + 16), tt_u64(rows + (size_t)i * ROW + 24)};
    qsort(spans, n, sizeof *spans, by_start);
    int found = 0;
    const struct span *last = NULL;
    for (size_t i = 0; i < n && !found; i++) {
        if (!spans[i].size) continue;
        int same = last && last->start == spans[i].start && last->size == spans[i].size;
        if (last && !same && spans[i].start < last->start + last->size) found = 1;
        last = &spans[i];
    }
    free(spans);
    return found;
}

/* NULL, or what is wrong. */
const char *tt_check_pack_header(const uint8_t header[HEADER], uint64_t size) {
    if (memcmp(header, "TTPACK\r\n", 8)) return "it does not begin as a pack does";
    if (tt_crc(0, header, 60) != tt_u32(header + 60)) return "its header has a wrong checksum";
    if (tt_u32(header + 8) != 1) return "its version is not known to this hook";
    if (tt_u64(header + 40) != size) return "it does not have the size that its header names";
    uint32_t count = tt_u32(header + 12);
    if (!inside(tt_u64(header + 16), (uint64_t)count * ROW, size)) return "its table lies outside of the file";
    if (!inside(tt_u64(header + 24), tt_u64(header + 32), size)) return "its description lies outside of the file";
    if (count > MAX_ROWS) return "its table is longer than any pack's";
    if (tt_u64(header + 32) > MAX_DESCRIPTION) return "its description is longer than any pack's";
    return NULL;
}

static const char *check_rows(const uint8_t header[HEADER], const uint8_t *rows, uint64_t size) {
    uint32_t count = tt_u32(header + 12);
    if (tt_crc(0, rows, (size_t)count * ROW) != tt_u32(header + 48)) return "its table has a wrong checksum";
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = rows + (size_t)i * ROW;
        uint64_t offset = tt_u64(row + 16), length = tt_u64(row + 24);
        if (i && memcmp(row - ROW, row, TT_KEY) >= 0) return "its table is not sorted";
        if (offset % ALIGNMENT || length < TT_CONTAINER_HEADER || tt_u32(row + 36) > PAGES) return "its table has a place that cannot be";
        if (!inside(offset, length, size)) return "its table leads outside of the file";
    }
    return overlap(header, rows, count) ? "parts of it overlap" : NULL;
}

/* Of the description, which is JSON without spaces, what makes a difference here. */
static void read_description(struct pack *pack, const char *text, size_t size) {
    static const char split[] = "\"split\":true", target[] = "\"target\":\"sm";
    if (!memmem(text, size, split, sizeof split - 1)) return;
    pack->split = 1;
    const char *at = memmem(text, size, target, sizeof target - 1);
    if (!at) return;
    for (at += sizeof target - 1; at < text + size && *at >= '0' && *at <= '9' && pack->target < 1000; at++)
        pack->target = pack->target * 10 + (unsigned)(*at - '0');
    if (at >= text + size || *at != '"') pack->target = 0; /* for several GPUs */
}

/* NULL, or what is wrong. */
static const char *read_index(struct pack *pack) {
    static const char cut_off[] = "it was cut off while it was read";
    uint8_t header[HEADER];
    uint64_t size = (uint64_t)pack->info.st_size;
    if (size < HEADER) return "it is shorter than its header";
    if (read_at(pack->file, header, HEADER, 0) < HEADER) return cut_off;
    const char *wrong = tt_check_pack_header(header, size);
    if (wrong) return wrong;
    uint32_t count = tt_u32(header + 12);
    size_t rows_size = (size_t)count * ROW, text_size = (size_t)tt_u64(header + 32);
    uint8_t *rows = new_pages(rows_size), *text = new_pages(text_size);
    const uint8_t **containers = calloc(count ? count : 1, sizeof *containers);
    if (!rows || !text || !containers) wrong = strerror(ENOMEM);
    else if (read_at(pack->file, rows, rows_size, tt_u64(header + 16)) < rows_size ||
             read_at(pack->file, text, text_size, tt_u64(header + 24)) < text_size)
        wrong = cut_off;
    else wrong = check_rows(header, rows, size);
    if (!wrong) read_description(pack, (const char *)text, text_size);
    if (text) munmap(text, text_size ? text_size : 1);
    if (wrong) {
        if (rows) munmap(rows, rows_size ? rows_size : 1);
        free(containers);
        return wrong;
    }
    pack->rows = rows;
    pack->count = count;
    pack->containers = containers;
    return NULL;
}

static int is_same_file(const struct pack *pack, const struct stat *info) {
    return pack->info.st_dev == info->st_dev && pack->info.st_ino == info->st_ino && pack->info.st_uid == info->st_uid;
}

static int is_changed(const struct pack *pack, int file) {
    struct stat now;
    return file < 0 || fstat(file, &now) || now.st_size != pack->info.st_size ||
           now.st_mtim.tv_sec != pack->info.st_mtim.tv_sec || now.st_mtim.tv_nsec != pack->info.st_mtim.tv_nsec;
}

static struct pack *open_pack(int at, const char *name, const char *path, const struct trust *trust) {
    struct stat info;
    const char *wrong;
    int file = open_trusted(at, name, 0, trust, &info, &wrong);
    if (file < 0) {
        if (wrong) say_refused("pack", path, wrong);
        return NULL;
    }
    struct pack *pack = all_packs;
    while (pack && !is_same_file(pack, &info)) pack = pack->next;
    if (pack && (pack->rows || !is_changed(pack, file))) { /* one that was damaged may have been half written */
        close(file);
        return pack;
    }
    int is_new = !pack;
    if (is_new && !(pack = calloc(1, sizeof *pack + strlen(path) + 1))) {
        close(file);
        return NULL;
    }
    enum { OUT_OF_THE_WAY = 200 }; /* programs know their own files by low numbers */
    int high = fcntl(file, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
    if (high >= 0) close(file);
    pack->file = high >= 0 ? high : file;
    pack->info = info;
    if (is_new) {
        strcpy(pack->path, path);
        pack->next = all_packs;
        all_packs = pack;
    }
    if ((wrong = read_index(pack))) {
        if (!is_quiet) tt_say("torchtailor: the pack %s is not used: %s. Make it again with `torchtailor tailor`, or run "
               "`torchtailor restore`.", path, wrong);
        close(pack->file);
        pack->file = -1;
    }
    return pack;
}

/* The row with a key, or -1. */
static int64_t look_up(const struct pack *pack, const uint8_t key[TT_KEY]) {
    for (uint32_t low = 0, high = pack->rows ? pack->count : 0; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        int order = memcmp(pack->rows + (size_t)middle * ROW, key, TT_KEY);
        if (!order) return middle;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return -1;
}

/* The open file, also after the program closed all that it did not know, or -1. */
static int file_of(struct pack *pack) {
    struct stat info;
    if (pack->file >= 0 && !fstat(pack->file, &info) && is_same_file(pack, &info)) return pack->file;
    pack->file = open(pack->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (pack->file >= 0 && !fstat(pack->file, &info) && is_same_file(pack, &info)) return pack->file;
    if (pack->file >= 0) close(pack->file);
    return pack->file = -1;
}

static const uint8_t *read_container(const uint8_t *row, int file) {
    uint64_t size = tt_u64(row + 24);
    uint8_t *copy = file >= 0 && size <= MAX_CONTAINER ? new_pages(size) : NULL;
    if (!copy) return NULL;
    if (!tt_u32(row + 36) && read_at(file, copy, size, tt_u64(row + 16)) == size && tt_crc(0, copy, size) == tt_u32(row + 32) &&
        tt_u32(copy) == 0xBA55ED50 && tt_u16(copy + 6) == TT_CONTAINER_HEADER &&
        tt_u64(copy + 8) == size - TT_CONTAINER_HEADER && !mprotect(copy, size, PROT_READ))
        return copy;
    munmap(copy, size);
    return NULL;
}

/* The container of a row, if it is whole. */
static const uint8_t *whole_container(struct pack *pack, int64_t number) {
    if (pack->containers[number]) return pack->containers[number];
    const uint8_t *row = pack->rows + (size_t)number * ROW;
    int file = file_of(pack);
    if ((pack->containers[number] = read_container(row, file))) return pack->containers[number];
    char key[2 * TT_KEY + 1];
    tt_key_text(row, key);
    tt_say("torchtailor: the container %.12s in the pack %s is damaged and is not used%s. Make the pack again with "
           "`torchtailor tailor`, or run `torchtailor restore`.", key, pack->path,
           is_changed(pack, file) ? ": the pack was changed while the program ran" : "");
    return NULL;
}

/* --- where packs are */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void add_pack(struct listing *listing, struct pack *pack) {
    for (size_t i = 0; i < listing->count; i++)
        if (listing->packs[i] == pack) return;
    struct pack **more = pack ? realloc(listing->packs, (listing->count + 1) * sizeof *more) : NULL;
    if (!more) return;
    listing->packs = more;
    listing->packs[listing->count++] = pack;
}

static int is_pack_name(const char *name) {
    size_t length = strlen(name);
    return length > strlen(SUFFIX) && !strcmp(name + length - strlen(SUFFIX), SUFFIX);
}

static int plain(const char *text) {
    for (const char *at = text; *at; at++)
        if (!((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
              strchr("._+!-", *at)))
            return 0;
    return *text != '\0';
}

/* The note of a distribution: its name, its version, and the names of its libraries, a line each. */
static void add_note(struct listing *listing, int folder, const char *place) {
    char path[2 * PATH_MAX], text[MAX_NOTE], *rest = text;
    struct stat info;
    const char *wrong;
    int file = open_trusted(folder, NOTE, 0, &listing->trust, &info, &wrong);
    snprintf(path, sizeof path, "%s/" NOTE, place);
    if (file < 0) {
        if (wrong) say_refused("note", path, wrong);
        return;
    }
    text[read_at(file, text, sizeof text - 1, 0)] = '\0';
    close(file);
    const char *name = strsep(&rest, "\n"), *version = rest ? strsep(&rest, "\n") : NULL;
    if (!rest || !plain(name) || !plain(version)) return;
    struct note *note = calloc(1, sizeof *note + strlen(rest) + 1);
    if (!note) return;
    if (snprintf(note->package.name, sizeof note->package.name, "%s", name) >= (int)sizeof note->package.name ||
        snprintf(note->package.version, sizeof note->package.version, "%s", version) >=
            (int)sizeof note->package.version) {
        free(note);
        return;
    }
    strcpy(note->libraries, rest);
    note->next = listing->notes;
    listing->notes = note;
}

static size_t list_names(int folder, char ***names) {
    size_t count = 0;
    int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = own >= 0 ? fdopendir(own) : NULL;
    if (own >= 0 && !entries) close(own);
    for (struct dirent *entry; entries && count < MAX_NAMES && (entry = readdir(entries));) {
        char **more = entry->d_name[0] == '.' ? NULL : realloc(*names, (count + 1) * sizeof **names);
        if (!more) continue;
        *names = more;
        if ((more[count] = strdup(entry->d_name))) count++;
    }
    if (entries) closedir(entries);
    if (count) qsort(*names, count, sizeof **names, by_name);
    return count;
}

/* The packs of a folder, and of the folders in it: each distribution has its own. */
static void list_folder(struct listing *listing, int folder, const char *place, int deeper) {
    char **names = NULL;
    size_t count = list_names(folder, &names);
    for (size_t i = 0; i < count; i++) {
        char path[PATH_MAX];
        struct stat info;
        const char *wrong;
        int fits = snprintf(path, sizeof path, "%s/%s", place, names[i]) < (int)sizeof path;
        if (fits && deeper && !fstatat(folder, names[i], &info, AT_SYMLINK_NOFOLLOW) && S_ISDIR(info.st_mode)) {
            int inner = open_trusted(folder, names[i], 1, &listing->trust, &info, &wrong);
            if (inner < 0 && wrong) say_refused("folder", path, wrong);
            if (inner >= 0) list_folder(listing, inner, path, 0);
            if (inner >= 0) close(inner);
        } else if (fits && is_pack_name(names[i])) {
            add_pack(listing, open_pack(folder, names[i], path, &listing->trust));
        }
        free(names[i]);
    }
    free(names);
    if (!deeper && !listing->trust.is_named && !listing->look) add_note(listing, folder, place);
}

/* What TORCHTAILOR_PACK names: it may be a link, and whoever it belongs to. */
static void list_named(struct listing *listing) {
    struct stat info;
    char real[PATH_MAX];
    if (!realpath(listing->path, real) || stat(real, &info)) {
        if (errno != ENOENT && errno != ENOTDIR) say_refused("pack", listing->path, strerror(errno));
        return;
    }
    listing->trust.named = info.st_uid;
    if (!S_ISDIR(info.st_mode)) {
        add_pack(listing, open_pack(AT_FDCWD, real, real, &listing->trust));
        return;
    }
    const char *wrong;
    int folder = open_trusted(AT_FDCWD, real, 1, &listing->trust, &info, &wrong);
    if (wrong) say_refused("folder", real, wrong);
    if (folder < 0) return;
    list_folder(listing, folder, real, 1);
    close(folder);
}

/* The packs of a folder that the library lies in. */
static void list_around(struct listing *listing, const char *above) {
    struct stat info;
    const char *wrong = NULL;
    int parent = open(*above ? above : "/", O_PATH | O_DIRECTORY | O_CLOEXEC), folder = -1;
    struct trust *trust = &listing->trust;
    if (parent < 0 || fstatat(parent, FOLDER, &info, AT_SYMLINK_NOFOLLOW) || fstat(parent, &info)) {
        if (parent >= 0) close(parent);
        return;
    }
    /* A group that may write here may replace what the library lies in, unless only what is its own (sticky). */
    if (info.st_mode & S_IWGRP && !(info.st_mode & S_ISVTX)) trust->groups[trust->group_count++] = info.st_gid;
    if (distrust(trust, &info)) wrong = "other users may write to the folder that it lies in";
    else folder = open_trusted(parent, FOLDER, 1, trust, &info, &wrong);
    close(parent);
    if (wrong) say_refused("folder", listing->path, wrong);
    if (folder < 0) return;
    list_folder(listing, folder, listing->path, 1);
    close(folder);
}

static int is_same_trust(const struct trust *a, const struct trust *b) {
    return a->owner == b->owner && a->is_named == b->is_named && a->group_count == b->group_count &&
           (!a->group_count || a->groups[0] == b->groups[0]);
}

static const struct listing *listing_of(const char *path, const struct trust *trust) {
    struct listing *listing = all_listings;
    while (listing && (strcmp(listing->path, path) || !is_same_trust(&listing->asked, trust))) listing = listing->next;
    if (listing && listing->look == looks) return listing;
    int is_new = !listing;
    if (is_new && !(listing = calloc(1, sizeof *listing + strlen(path) + 1))) return NULL;
    if (is_new) strcpy(listing->path, path);
    if (!is_new) listing->look = looks; /* what it has stays, and what came since is added */
    listing->asked = listing->trust = *trust;
    if (trust->is_named) {
        list_named(listing);
    } else {
        char above[PATH_MAX];
        snprintf(above, sizeof above, "%.*s", (int)(strlen(path) - strlen("/" FOLDER)), path);
        list_around(listing, above);
    }
    listing->look = looks;
    if (is_new) {
        listing->next = all_listings;
        all_listings = listing;
    }
    return listing;
}

struct search {
    const uint8_t *key;
    size_t count;
    const struct pack *packs[MAX_SOURCES];
    const uint8_t *parts[MAX_SOURCES];
};

static void search_listing(struct search *search, const struct listing *listing) {
    for (size_t i = 0; listing && i < listing->count && search->count < MAX_SOURCES; i++) {
        struct pack *pack = listing->packs[i];
        int again = 0;
        for (size_t k = 0; k < search->count; k++) again |= search->packs[k] == pack;
        int64_t row = again ? -1 : look_up(pack, search->key);
        const uint8_t *container = row >= 0 ? whole_container(pack, row) : NULL;
        if (!container) continue;
        search->packs[search->count] = pack;
        search->parts[search->count++] = container;
    }
}

static struct trust trust_of(const char *library) {
    struct stat info;
    struct trust trust = {.owner = geteuid(), .namer = geteuid()};
    if (!stat(library, &info)) {
        trust.owner = info.st_uid;
        if (info.st_mode & S_IWGRP) trust.groups[trust.group_count++] = info.st_gid;
    }
    return trust;
}

static void search_named(struct search *search, const char *library, const char *named) {
    struct trust trust = trust_of(library);
    trust.is_named = 1;
    while (*named) {
        size_t length = strcspn(named, ":");
        char path[PATH_MAX];
        if (length && length < sizeof path) {
            memcpy(path, named, length);
            path[length] = '\0';
            search_listing(search, listing_of(path, &trust));
        }
        named += length + (named[length] == ':');
    }
}

/* The folders of packs beside a library and above it, one after the other until it is `enough`. */
static int around(const char *library, int (*enough)(const struct listing *, void *), void *data) {
    struct trust trust = trust_of(library);
    char folder[PATH_MAX], path[PATH_MAX + sizeof FOLDER + 1];
    snprintf(folder, sizeof folder, "%s", library);
    for (int level = 0; level <= MAX_PARENTS; level++) {
        char *slash = strrchr(folder, '/');
        if (!slash) break;
        *slash = '\0';
        snprintf(path, sizeof path, "%s/" FOLDER, folder);
        const struct listing *listing = listing_of(path, &trust);
        if (listing && enough(listing, data)) return 1;
    }
    return 0;
}

/* The same, also of where the library really is. */
static int around_both(const char *library, int (*enough)(const struct listing *, void *), void *data) {
    char real[PATH_MAX];
    return around(library, enough, data) ||
           (realpath(library, real) && strcmp(real, library) && around(real, enough, data));
}

static int search_all(const struct listing *listing, void *search) {
    search_listing(search, listing);
    return 0;
}

/* Opens folder by folder, as far as they may be trusted, so that none of them is a link. */
int tt_open_pack(const char *library, const char *path, int is_named, struct stat *info, const char **wrong) {
    struct trust trust = trust_of(library);
    const char *name = strrchr(path, '/'), *folders = strstr(path, "/" FOLDER "/");
    *wrong = NULL;
    if (is_named) {
        trust.is_named = 1;
        if (!name || stat(path, info) || S_ISDIR(info->st_mode)) return -1;
        trust.named = info->st_uid;
        return open_trusted(AT_FDCWD, path, 0, &trust, info, wrong);
    }
    for (const char *next; folders && (next = strstr(folders + 1, "/" FOLDER "/"));) folders = next;
    char part[PATH_MAX];
    if (!folders || strlen(path) >= sizeof part) return -1;
    memcpy(part, path, (size_t)(folders - path));
    part[folders - path] = '\0';
    int folder = open(*part ? part : "/", O_PATH | O_DIRECTORY | O_CLOEXEC), file = -1;
    if (folder < 0 || fstat(folder, info)) {
        if (folder >= 0) close(folder);
        return -1;
    }
    if (info->st_mode & S_IWGRP && !(info->st_mode & S_ISVTX)) trust.groups[trust.group_count++] = info->st_gid;
    if (distrust(&trust, info)) *wrong = "other users may write to the folder that its folder lies in";
    for (const char *at = folders + 1; !*wrong; at += strlen(part) + 1) {
        size_t length = strcspn(at, "/");
        memcpy(part, at, length);
        part[length] = '\0';
        int is_last = !at[length], inner = open_trusted(folder, part, !is_last, &trust, info, wrong);
        if (is_last) file = inner;
        if (is_last || inner < 0) break;
        close(folder);
        folder = inner;
    }
    close(folder);
    return file;
}

/* --- one container of several packs: a machine with two kinds of GPU has a pack for each */

static uint64_t entry_size(const uint8_t *at, uint64_t room) {
    if (room < 16) return 0;
    uint64_t header = tt_u32(at + 4), payload = tt_u64(at + 8);
    return header >= 16 && header <= room && payload <= room - header ? header + payload : 0;
}

static int is_walkable(const uint8_t *container) {
    uint64_t left = tt_u64(container + 8), size;
    for (const uint8_t *at = container + TT_CONTAINER_HEADER; left; at += size, left -= size)
        if (!(size = entry_size(at, left))) return 0;
    return 1;
}

static int has_entry(const uint8_t *container, uint64_t body, const uint8_t *entry, uint64_t size) {
    uint64_t other;
    for (const uint8_t *at = container + TT_CONTAINER_HEADER; body; at += other, body -= other) {
        other = entry_size(at, body);
        if (other == size && !memcmp(at, entry, size)) return 1;
    }
    return 0;
}

static const void *merge(const struct search *search) {
    for (struct merged *known = all_merged; known; known = known->next)
        if (known->count == search->count && !memcmp(known->parts, search->parts, known->count * sizeof *known->parts))
            return known->container;
    uint64_t most = TT_CONTAINER_HEADER;
    for (size_t i = 0; i < search->count; i++) {
        if (!is_walkable(search->parts[i])) return search->parts[0];
        most += tt_u64(search->parts[i] + 8);
    }
    struct merged *merged = calloc(1, sizeof *merged);
    uint8_t *container = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!merged || container == MAP_FAILED) {
        if (container != MAP_FAILED) munmap(container, most);
        free(merged);
        return search->parts[0];
    }
    memcpy(container, search->parts[0], TT_CONTAINER_HEADER);
    uint64_t body = 0;
    for (size_t i = 0; i < search->count; i++) {
        uint64_t left = tt_u64(search->parts[i] + 8), size;
        for (const uint8_t *at = search->parts[i] + TT_CONTAINER_HEADER; left; at += size, left -= size) {
            size = entry_size(at, left);
            if (has_entry(container, body, at, size)) continue;
            memcpy(container + TT_CONTAINER_HEADER + body, at, size);
            body += size;
        }
    }
    memcpy(container + 8, &body, sizeof body);
    merged->count = search->count;
    memcpy(merged->parts, search->parts, sizeof merged->parts);
    merged->container = container;
    merged->next = all_merged;
    all_merged = merged;
    return container;
}

long tt_pack_wait(void) {
    long seconds = atol(tt_setting("TORCHTAILOR_PACK_WAIT"));
    return seconds > 0 && seconds < LONG_MAX / 1000 ? seconds : 0;
}

int tt_find_container(const char *library, const uint8_t key[TT_KEY], struct tt_found *found) {
    struct search search = {.key = key};
    const char *named = tt_setting("TORCHTAILOR_PACK");
    tt_busy++;
    search_named(&search, library, named);
    around_both(library, search_all, &search);
    tt_busy--;
    if (search.count) {
        found->container = search.count == 1 ? search.parts[0] : merge(&search);
        found->pack = search.packs[0]->path;
        for (size_t i = 0; i < search.count; i++) {
            found->split |= search.packs[i]->split;
            if (search.packs[i]->split && search.packs[i]->target && found->target_count < TT_TARGETS)
                found->targets[found->target_count++] = search.packs[i]->target;
        }
        return 1;
    }
    const char *slash = strrchr(library, '/');
    int length = slash ? (int)(slash - library) : 0;
    snprintf(found->looked, sizeof found->looked, "%s%s%.*s/" FOLDER " and in its parent folders", named,
             *named ? ", " : "", length, library);
    return 0;
}

/* --- the package that has all code of a library */

struct package_search {
    const char *library; /* its name */
    struct tt_package *package;
};

static int is_line_of(const char *text, const char *line) {
    size_t length = strlen(line);
    for (; *text; text = strchrnul(text, '\n'), text += *text != 0)
        if (!strncmp(text, line, length) && (text[length] == '\n' || !text[length])) return 1;
    return 0;
}

static int has_note(const struct listing *listing, void *data) {
    const struct package_search *search = data;
    for (const struct note *note = listing->notes; note; note = note->next) {
        if (!is_line_of(note->libraries, search->library)) continue;
        *search->package = note->package;
        return 1;
    }
    return 0;
}

int tt_find_container_again(const char *library, const uint8_t key[TT_KEY], struct tt_found *found, int is_last) {
    looks++;
    is_quiet = !is_last;
    int is_there = tt_find_container(library, key, found);
    is_quiet = 0;
    return is_there;
}

int tt_find_package(const char *library, struct tt_package *package) {
    const char *slash = strrchr(library, '/');
    struct package_search search = {slash ? slash + 1 : library, package};
    tt_busy++;
    int found = around_both(library, has_note, &search);
    tt_busy--;
    return found;
}
