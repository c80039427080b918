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

enum { HEADER = 64, ROW = 40, ALIGNMENT = 64, MAX_PARENTS = 8, MAX_SOURCES = 64 };
#define FOLDER "torchtailor-packs"
#define SUFFIX ".ttpack"
#define NOTE "split.txt"

struct pack {
    struct pack *next;
    dev_t device;
    ino_t inode;
    const uint8_t *bytes, *rows; /* NULL: refused */
    size_t size;
    uint32_t count;
    int split;       /* it has all code of its library for one GPU */
    unsigned target; /* that GPU: 90 for sm_90 */
    char path[];
};
struct listing { /* a folder's packs, or one file's, as they were when it was first needed */
    struct listing *next;
    size_t count;
    struct pack **packs;
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
static int overlap(const uint8_t *bytes, const uint8_t *rows, uint32_t count) {
    size_t n = (size_t)count + 3;
    struct span *spans = calloc(n, sizeof *spans);
    if (!spans) return 0;
    spans[0] = (struct span){0, HEADER};
    spans[1] = (struct span){tt_u64(bytes + 16), (uint64_t)count * ROW};
    spans[2] = (struct span){tt_u64(bytes + 24), tt_u64(bytes + 32)};
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
static const char *check(const uint8_t *bytes, uint64_t size) {
    if (size < HEADER) return "it is shorter than its header";
    if (memcmp(bytes, "TTPACK\r\n", 8)) return "it does not begin as a pack does";
    if (tt_crc(0, bytes, 60) != tt_u32(bytes + 60)) return "its header has a wrong checksum";
    if (tt_u32(bytes + 8) != 1) return "its version is not known to this hook";
    if (tt_u64(bytes + 40) != size) return "it does not have the size that its header names";
    uint32_t count = tt_u32(bytes + 12);
    uint64_t at = tt_u64(bytes + 16);
    if (!inside(at, (uint64_t)count * ROW, size)) return "its table lies outside of the file";
    if (!inside(tt_u64(bytes + 24), tt_u64(bytes + 32), size)) return "its description lies outside of the file";
    const uint8_t *rows = bytes + at;
    if (tt_crc(0, rows, (size_t)count * ROW) != tt_u32(bytes + 48)) return "its table has a wrong checksum";
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = rows + (size_t)i * ROW;
        uint64_t offset = tt_u64(row + 16), length = tt_u64(row + 24);
        if (i && memcmp(row - ROW, row, TT_KEY) >= 0) return "its table is not sorted";
        if (offset % ALIGNMENT || length < TT_CONTAINER_HEADER) return "its table has a place that cannot be";
        if (!inside(offset, length, size)) return "its table leads outside of the file";
    }
    return overlap(bytes, rows, count) ? "parts of it overlap" : NULL;
}

/* Of the description, which is JSON without spaces, what makes a difference here. */
static void read_description(struct pack *pack) {
    static const char split[] = "\"split\":true", target[] = "\"target\":\"sm";
    const char *text = (const char *)pack->bytes + tt_u64(pack->bytes + 24);
    size_t size = (size_t)tt_u64(pack->bytes + 32);
    if (!memmem(text, size, split, sizeof split - 1)) return;
    pack->split = 1;
    const char *at = memmem(text, size, target, sizeof target - 1);
    if (!at) return;
    for (at += sizeof target - 1; at < text + size && *at >= '0' && *at <= '9' && pack->target < 1000; at++)
        pack->target = pack->target * 10 + (unsigned)(*at - '0');
    if (at >= text + size || *at != '"') pack->target = 0; /* for several GPUs */
}

static struct pack *open_pack(const char *path, const uid_t *owner) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (file < 0 || fstat(file, &info)) {
        if (errno != ENOENT && errno != ENOTDIR) tt_say("torchtailor: the pack %s cannot be read (%s).\n", path, strerror(errno));
        if (file >= 0) close(file);
        return NULL;
    }
    for (struct pack *known = all_packs; known; known = known->next) {
        if (known->device == info.st_dev && known->inode == info.st_ino) {
            close(file);
            return known;
        }
    }
    struct pack *pack = calloc(1, sizeof *pack + strlen(path) + 1);
    if (!pack) {
        close(file);
        return NULL;
    }
    strcpy(pack->path, path);
    pack->device = info.st_dev;
    pack->inode = info.st_ino;
    pack->next = all_packs;
    all_packs = pack;
    const char *wrong = NULL;
    void *bytes = MAP_FAILED;
    /* A folder above the library may belong to anyone (/tmp): GPU code comes from those who could change the library. */
    if (owner && info.st_uid && info.st_uid != *owner && info.st_uid != geteuid())
        wrong = "it belongs to another user than the library";
    else if (!S_ISREG(info.st_mode)) wrong = "it is not a file";
    else if (info.st_size < HEADER) wrong = "it is shorter than its header";
    else if ((bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0)) == MAP_FAILED)
        wrong = strerror(errno);
    else wrong = check(bytes, (uint64_t)info.st_size);
    close(file);
    if (wrong) {
        tt_say("torchtailor: the pack %s is not used: %s. Make it again with `torchtailor tailor`, or run "
               "`torchtailor restore`.\n", path, wrong);
        if (bytes != MAP_FAILED) munmap(bytes, (size_t)info.st_size);
        return pack;
    }
    pack->bytes = bytes;
    pack->size = (size_t)info.st_size;
    pack->rows = pack->bytes + tt_u64(pack->bytes + 16);
    pack->count = tt_u32(pack->bytes + 12);
    read_description(pack);
    return pack;
}

static const uint8_t *look_up(const struct pack *pack, const uint8_t key[TT_KEY]) {
    if (!pack->rows) return NULL;
    for (uint32_t low = 0, high = pack->count; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        const uint8_t *row = pack->rows + (size_t)middle * ROW;
        int order = memcmp(row, key, TT_KEY);
        if (!order) return row;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* The container of a row, if it is whole. */
static const uint8_t *whole_container(const struct pack *pack, const uint8_t *row) {
    const uint8_t *container = pack->bytes + tt_u64(row + 16);
    uint64_t size = tt_u64(row + 24);
    if (tt_crc(0, container, size) == tt_u32(row + 32) && tt_u32(container) == 0xBA55ED50 &&
        tt_u16(container + 6) == TT_CONTAINER_HEADER && tt_u64(container + 8) == size - TT_CONTAINER_HEADER)
        return container;
    char key[2 * TT_KEY + 1];
    tt_key_text(row, key);
    tt_say("torchtailor: the container %.12s in the pack %s is damaged and is not used. Make the pack again with "
           "`torchtailor tailor`, or run `torchtailor restore`.\n", key, pack->path);
    return NULL;
}

/* --- where packs are */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void add_pack(struct listing *listing, struct pack *pack) {
    struct pack **more = pack ? realloc(listing->packs, (listing->count + 1) * sizeof *more) : NULL;
    if (!more) return;
    listing->packs = more;
    listing->packs[listing->count++] = pack;
}

static int is_pack_name(const char *name) {
    size_t length = strlen(name);
    return length > strlen(SUFFIX) && !strcmp(name + length - strlen(SUFFIX), SUFFIX);
}

/* The packs of a folder, and of the folders in it: each distribution has its own. */
static void list_folder(struct listing *listing, const char *place, DIR *folder, const uid_t *owner, int deeper) {
    char **names = NULL;
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        int maybe_folder = deeper && (entry->d_type == DT_DIR || entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN);
        if (entry->d_name[0] == '.' || (!maybe_folder && !is_pack_name(entry->d_name))) continue;
        char **more = realloc(names, (count + 1) * sizeof *names);
        if (!more) break;
        names = more;
        if (asprintf(&names[count], "%s/%s", place, entry->d_name) < 0) break;
        count++;
    }
    if (count) qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        DIR *inner = deeper ? opendir(names[i]) : NULL;
        if (inner) {
            list_folder(listing, names[i], inner, owner, 0);
            closedir(inner);
        } else if (is_pack_name(names[i])) {
            add_pack(listing, open_pack(names[i], owner));
        }
        free(names[i]);
    }
    free(names);
}

static const struct listing *listing_of(const char *path, const uid_t *owner) {
    for (struct listing *known = all_listings; known; known = known->next)
        if (!strcmp(known->path, path)) return known;
    struct listing *listing = calloc(1, sizeof *listing + strlen(path) + 1);
    if (!listing) return NULL;
    strcpy(listing->path, path);
    DIR *folder = opendir(path);
    if (folder) {
        list_folder(listing, path, folder, owner, 1);
        closedir(folder);
    } else if (errno == ENOTDIR) {
        add_pack(listing, open_pack(path, owner));
    }
    listing->next = all_listings;
    return all_listings = listing;
}

struct search {
    const uint8_t *key;
    size_t count;
    const struct pack *packs[MAX_SOURCES];
    const uint8_t *parts[MAX_SOURCES];
};

static void search_listing(struct search *search, const char *path, const uid_t *owner) {
    const struct listing *listing = listing_of(path, owner);
    for (size_t i = 0; listing && i < listing->count && search->count < MAX_SOURCES; i++) {
        const struct pack *pack = listing->packs[i];
        int again = 0;
        for (size_t k = 0; k < search->count; k++) again |= search->packs[k] == pack;
        const uint8_t *row = again ? NULL : look_up(pack, search->key);
        const uint8_t *container = row ? whole_container(pack, row) : NULL;
        if (!container) continue;
        search->packs[search->count] = pack;
        search->parts[search->count++] = container;
    }
}

static void search_named(struct search *search, const char *named) {
    while (*named) {
        size_t length = strcspn(named, ":");
        char path[PATH_MAX];
        if (length && length < sizeof path) {
            memcpy(path, named, length);
            path[length] = '\0';
            search_listing(search, path, NULL);
        }
        named += length + (named[length] == ':');
    }
}

static void search_around(struct search *search, const char *library) {
    struct stat info;
    uid_t owner = stat(library, &info) ? geteuid() : info.st_uid;
    char folder[PATH_MAX], path[PATH_MAX + sizeof FOLDER + 1];
    snprintf(folder, sizeof folder, "%s", library);
    for (int level = 0; level <= MAX_PARENTS; level++) {
        char *slash = strrchr(folder, '/');
        if (!slash) break;
        *slash = '\0';
        snprintf(path, sizeof path, "%s/" FOLDER, folder);
        search_listing(search, path, &owner);
    }
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

int tt_find_container(const char *library, const uint8_t key[TT_KEY], struct tt_found *found) {
    struct search search = {.key = key};
    const char *named = tt_setting("TORCHTAILOR_PACK");
    char real[PATH_MAX];
    tt_busy++;
    search_named(&search, named);
    search_around(&search, library);
    if (realpath(library, real) && strcmp(real, library)) search_around(&search, real);
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

static int plain(const char *text) {
    for (const char *at = text; *at; at++)
        if (!((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
              strchr("._+!-", *at)))
            return 0;
    return *text != '\0';
}

/* The note of a distribution: its name, its version, and the names of its libraries, a line each. */
static int read_note(const char *path, const char *library, struct tt_package *package) {
    char text[16384], *rest = text;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = '\0';
    const char *name = strsep(&rest, "\n"), *version = rest ? strsep(&rest, "\n") : NULL;
    if (!version || !plain(name) || !plain(version)) return 0;
    while (rest)
        if (!strcmp(strsep(&rest, "\n"), library)) {
            snprintf(package->name, sizeof package->name, "%s", name);
            snprintf(package->version, sizeof package->version, "%s", version);
            return 1;
        }
    return 0;
}

static int find_note(const char *place, const char *library, struct tt_package *package) {
    DIR *folder = opendir(place);
    int found = 0;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        char path[3 * PATH_MAX];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s/" NOTE, place, entry->d_name);
        found = read_note(path, library, package);
    }
    if (folder) closedir(folder);
    return found;
}

static int find_package_around(const char *library, struct tt_package *package) {
    char folder[PATH_MAX], path[PATH_MAX + sizeof FOLDER + 1];
    snprintf(folder, sizeof folder, "%s", library);
    const char *slash = strrchr(library, '/'), *name = slash ? slash + 1 : library;
    for (int level = 0; level <= MAX_PARENTS; level++) {
        char *end = strrchr(folder, '/');
        if (!end) break;
        *end = '\0';
        snprintf(path, sizeof path, "%s/" FOLDER, folder);
        if (find_note(path, name, package)) return 1;
    }
    return 0;
}

int tt_find_package(const char *library, struct tt_package *package) {
    char real[PATH_MAX];
    tt_busy++;
    int found = find_package_around(library, package) ||
                (realpath(library, real) && strcmp(real, library) && find_package_around(real, package));
    tt_busy--;
    return found;
}
