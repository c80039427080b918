/* DRIVER is defined: a driver that takes everything. Else random folders of packs and notes, and random wrappers and containers, through the hook's own sources.
 *     fuzz PACK FOLDER SEED COUNT      prints inputs, containers that were handed out, searches that gave none */
#ifdef DRIVER
#include <stddef.h>
int cuModuleLoadData(void *out, const void *code) { return out != NULL && code == NULL; }
int cuLibraryLoadData(void *out, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    (void)out, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return code == NULL;
}
int cuLinkAddData_v2(void *s, int t, const void *data, size_t size, const char *n, unsigned c, void *o, void *v) {
    (void)s, (void)t, (void)n, (void)c, (void)o, (void)v;
    return data == NULL && size;
}
#else
#include "hook.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROW = 40, MAX_PACK = 1 << 16, ARENA = 4096 };
static uint64_t state;
static uint8_t seed[MAX_PACK];
static size_t seed_size;

static uint32_t dice(uint32_t sides) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % sides;
}

static uint8_t byte(void) {
    static const uint8_t odd[] = {0, 1, 0x1b, 0x20, 0x3f, 0x40, 0x7f, 0x80, 0xff};
    return dice(3) ? odd[dice(sizeof odd)] : (uint8_t)dice(256);
}

static void put(const char *path, const void *bytes, size_t size) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, bytes, size) != (ssize_t)size || close(file)) abort();
}

/* The pack with some damage, the checksums right where they can be. */
static void put_pack(const char *path) {
    uint8_t bytes[MAX_PACK];
    size_t size = seed_size;
    memcpy(bytes, seed, size);
    for (uint32_t i = dice(5); i; i--) bytes[dice(2) ? dice(64 + 6 * ROW) : dice((uint32_t)size)] = byte();
    uint64_t rows = tt_u32(bytes + 12), offset = tt_u64(bytes + 16);
    uint32_t crc;
    if (dice(5))
        for (uint64_t i = 0; i < rows && offset < size && (i + 1) * ROW <= size - offset; i++) {
            uint8_t *row = bytes + offset + i * ROW;
            uint64_t at = tt_u64(row + 16), length = tt_u64(row + 24);
            if (at > size || length > size - at) continue;
            crc = tt_crc(0, bytes + at, length);
            memcpy(row + 32, &crc, sizeof crc);
        }
    if (dice(5) && offset < size && rows * ROW <= size - offset) {
        crc = tt_crc(0, bytes + offset, rows * ROW);
        memcpy(bytes + 48, &crc, sizeof crc);
    }
    if (dice(10)) {
        crc = tt_crc(0, bytes, 60);
        memcpy(bytes + 60, &crc, sizeof crc);
    }
    put(path, bytes, dice(10) ? size : dice((uint32_t)size));
}

static void put_note(const char *path) {
    char text[1 << 15];
    size_t size = (size_t)snprintf(text, sizeof text, "torch\n2.15.0+cu132.host\nlibcode.so\nlibother.so\n");
    if (!dice(8)) memset(text + size, dice(2) ? 'x' : '\n', dice(sizeof text - 64)), size = sizeof text - 64;
    for (uint32_t i = dice(4); i; i--) text[dice((uint32_t)size)] = (char)byte();
    put(path, text, size);
}

static void put_any(const char *path) {
    switch (dice(16)) {
    case 0: if (mkfifo(path, 0644)) abort(); break;
    case 1: if (symlink("/dev/zero", path)) abort(); break;
    case 2: if (mkdir(path, 0755)) abort(); break;
    case 3: put_pack(path); if (chmod(path, dice(01000))) abort(); break;
    case 4: put(path, "", 0); break;
    default: put_pack(path);
    }
}

/* --- another thread, which changes the pack that is being read */

static _Atomic(char *) changing;
static _Atomic int done;

static void *change(void *unused) {
    (void)unused;
    for (unsigned turn = 0; !atomic_load(&done); turn++) {
        char *path = atomic_exchange(&changing, NULL);
        int file = path ? open(path, O_RDWR | O_NONBLOCK | O_NOFOLLOW) : -1;
        if (file >= 0) {
            if (turn % 3 == 0 ? ftruncate(file, (off_t)(turn % 2000)) < 0
                              : pwrite(file, "changed", 7, (off_t)(turn * 37 % 2000)) < 0) { /* a pipe */
            }
            close(file);
        }
        free(path);
    }
    return NULL;
}

static void random_name(char *name, size_t room) {
    size_t length = 1 + dice(12);
    for (size_t i = 0; i < length && i < room - 8; i++) {
        name[i] = (char)(dice(6) ? 'a' + dice(26) : byte());
        if (!name[i] || name[i] == '/' || name[i] == '.') name[i] = '_';
    }
    strcpy(name + length, dice(4) ? ".ttpack" : "");
}

static int search_folder(const char *work, uint32_t number) {
    char library[PATH_MAX], packs[PATH_MAX], path[2 * PATH_MAX], name[64];
    snprintf(path, sizeof path, "%s/%u", work, number);
    mkdir(path, 0755);
    snprintf(packs, sizeof packs, "%s/%u/torchtailor-packs", work, number);
    snprintf(library, sizeof library, "%s/%u/libcode.so", work, number);
    put(library, "", 0);
    if (!dice(40)) put_any(packs);
    else mkdir(packs, 0755);
    snprintf(path, sizeof path, "%s/torch", packs);
    mkdir(path, 0755);
    struct stat info;
    for (uint32_t i = 1 + dice(3); i && !stat(packs, &info) && S_ISDIR(info.st_mode); i--) {
        random_name(name, sizeof name);
        snprintf(path, sizeof path, "%s/%s%s", packs, dice(2) ? "torch/" : "", name);
        if (lstat(path, &info)) put_any(path);
        if (dice(3) == 0) free(atomic_exchange(&changing, strdup(path)));
    }
    snprintf(path, sizeof path, "%s/torch/split.txt", packs);
    if (!stat(packs, &info) && S_ISDIR(info.st_mode)) {
        if (dice(8)) put_note(path);
        else put_any(path);
    }
    uint8_t key[TT_KEY];
    memcpy(key, seed + 64 + ROW * dice(6), TT_KEY);
    struct tt_found result = {0};
    struct tt_package package;
    tt_acquire();
    int handed_out = tt_find_container(library, key, &result);
    tt_find_package(library, &package);
    tt_release();
    if (handed_out) { /* it can be read to its end, whatever becomes of the file */
        const uint8_t *at = result.container;
        if (tt_crc(0, at, TT_CONTAINER_HEADER + tt_u64(at + 8)) == 1) puts("");
    }
    return handed_out;
}

/* --- wrappers and containers of a library: a part of this program */

static _Alignas(64) uint8_t arena[ARENA];
int torchtailor_cuModuleLoadData(void *out, const void *code);
int torchtailor_cuLibraryLoadData(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int torchtailor_cuLinkAddData_v2(void *, int, const void *, size_t, const char *, unsigned, void *, void *);

static uint64_t place(void) { return (uint64_t)(uintptr_t)(arena + (dice(4) ? 64 * dice(ARENA / 64) : dice(ARENA - 3))); }

static void hand_over(void) {
    static const uint32_t magics[] = {0x466243B1u, 0xBA55ED50u, 0x464C457Fu, 0};
    for (uint32_t at = 0; at < ARENA; at += 64) {
        if (dice(4) == 0) continue;
        uint32_t magic = magics[dice(4)], version = dice(3);
        uint64_t first = place(), second = dice(3) ? place() : 0;
        for (uint32_t i = 0; i < 64; i++) arena[at + i] = byte();
        memcpy(arena + at, &magic, 4);
        memcpy(arena + at + 4, &version, 4);
        if (magic == magics[0]) {
            memcpy(arena + at + 8, &first, 8);
            memcpy(arena + at + 16, &second, 8);
        } else if (magic == magics[1] && dice(2)) {
            memset(arena + at + 8, 0, 8);
            memcpy(arena + at + 16, "TTPACK1", 8);
            if (dice(2)) memcpy(arena + at + 24, seed + 64 + ROW * dice(6), TT_KEY);
        } else if (dice(2)) { /* a list of containers */
            for (uint32_t i = 0; i < 7; i++) memcpy(arena + at + 8 * i, &(uint64_t){place()}, 8);
            memset(arena + at + 56, 0, 8);
        }
    }
    const void *code = (const void *)(uintptr_t)place();
    torchtailor_cuModuleLoadData(NULL, code);
    torchtailor_cuLibraryLoadData(NULL, code, NULL, NULL, 0, NULL, NULL, 0);
    torchtailor_cuLinkAddData_v2(NULL, 0, code, dice(2) ? 0 : dice(64), "", 0, NULL, NULL);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int file = open(argv[1], O_RDONLY);
    ssize_t size = read(file, seed, sizeof seed);
    if (size < 64 + 6 * ROW) return 2;
    seed_size = (size_t)size;
    state = strtoull(argv[3], NULL, 10);
    uint32_t count = (uint32_t)atoi(argv[4]), opened = 0;
    pthread_t changer;
    pthread_create(&changer, NULL, change, NULL);
    for (uint32_t i = 0; i < count; i++) {
        opened += (uint32_t)search_folder(argv[2], i);
        hand_over();
    }
    atomic_store(&done, 1);
    pthread_join(changer, NULL);
    printf("%u %u %u\n", count, opened, count - opened);
    return 0;
}
#endif
