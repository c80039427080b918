/* What the hook tells: sentences on stderr, record files, and the file of misses. */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = TT_LINE, MAX_MISSES = 16 << 20 };
#define MAX_IMAGE (UINT64_C(1) << 31)
#define MAX_SEEN ((size_t)1 << 22)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local int tt_busy __attribute__((tls_model("initial-exec")));

void tt_acquire(void) {
    tt_busy++;
    pthread_mutex_lock(&lock);
}

void tt_release(void) {
    pthread_mutex_unlock(&lock);
    tt_busy--;
}

/* --- numbers */

static uint32_t crc_table[8][256];

static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
        crc_table[0][i] = value;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

/* zlib's crc32, eight bytes at a time: a container has megabytes, and a first miss shall not be felt. */
uint32_t tt_crc(uint32_t crc, const void *data, size_t size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_crc_table);
    const uint8_t *at = data;
    crc = ~crc;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word = tt_u64(at) ^ crc;
        crc = crc_table[7][word & 255] ^ crc_table[6][word >> 8 & 255] ^ crc_table[5][word >> 16 & 255] ^
              crc_table[4][word >> 24 & 255] ^ crc_table[3][word >> 32 & 255] ^ crc_table[2][word >> 40 & 255] ^
              crc_table[1][word >> 48 & 255] ^ crc_table[0][word >> 56];
    }
    for (; size; at++, size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 255];
    return ~crc;
}

void tt_key_text(const uint8_t key[TT_KEY], char text[2 * TT_KEY + 1]) {
    for (int i = 0; i < TT_KEY; i++) snprintf(text + 2 * i, 3, "%02x", key[i]);
}

/* --- sentences and settings */

/* How many bytes a character of UTF-8 has that may be shown as it is, or 0: a control character, a mark that turns the
 * direction of text, and what is no UTF-8 is not. As printable() in core/format.py. */
static size_t shown(const uint8_t *at) {
    if (at[0] < 0x80) return at[0] >= 0x20 && at[0] != 0x7F;
    size_t size = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
    uint32_t code = at[0] & (0xFFu >> (size + 1));
    if (at[0] < 0xC2 || at[0] > 0xF4) return 0;
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (at[i] & 0x3Fu);
    }
    int wrong = (size == 3 && code < 0x800) || (size == 4 && (code < 0x10000 || code > 0x10FFFF)) ||
                (code >= 0xD800 && code <= 0xDFFF);
    int acts = code < 0xA0 || code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
               (code >= 0x2066 && code <= 0x2069);
    return wrong || acts ? 0 : size;
}

/* Adds a text to a line that has room, in the way in which it may be shown: names of files and folders may be anyone's.
 * Calls nothing, so that a handler of signals may use it. */
size_t tt_add_shown(char *line, size_t used, size_t room, const char *text) {
    static const char digits[] = "0123456789abcdef";
    while (*text && used + 4 <= room) {
        size_t plain = shown((const uint8_t *)text);
        if (plain) {
            for (size_t i = 0; i < plain; i++) line[used++] = *text++;
        } else {
            line[used++] = '\\';
            line[used++] = 'x';
            line[used++] = digits[(uint8_t)*text >> 4];
            line[used++] = digits[(uint8_t)*text++ & 15];
        }
    }
    return used;
}

void tt_say(const char *format, ...) {
    char text[3 * PATH_MAX], line[4 * PATH_MAX];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (size < 0) return;
    size_t used = tt_add_shown(line, 0, sizeof line - 1, text);
    line[used++] = '\n';
    int kept = errno;
    if (write(STDERR_FILENO, line, used) < 0) { /* nobody to tell */
    }
    errno = kept;
}

/* A program with more rights than its user does not do what the user's environment says. */
const char *tt_setting(const char *name) {
    const char *value = secure_getenv(name);
    return value ? value : "";
}

/* --- files that processes append to */

static int append(const char *path, const char *text, size_t size) {
    tt_busy++;
    int kept = errno, result = -1;
    struct stat info;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    if (file >= 0 && (fstat(file, &info) || !S_ISREG(info.st_mode))) { /* another user's pipe in a shared folder */
        close(file);
        file = -1;
        errno = EINVAL;
    }
    if (file >= 0) {
        ssize_t written = write(file, text, size); /* one call: lines of several processes do not mix */
        if (written == (ssize_t)size) result = 0;
        else if (written >= 0) errno = ENOSPC;
        int failed = errno;
        close(file);
        errno = failed;
    }
    if (!result) errno = kept;
    tt_busy--;
    return result;
}

size_t tt_put(char *line, size_t at, const char *text) {
    for (; *text && at < LINE - 3; text++) {
        const char *special = strchr("\t\n\\", *text);
        if (special) {
            line[at++] = '\\';
            line[at++] = "tn\\"[special - "\t\n\\"];
        } else {
            line[at++] = *text;
        }
    }
    return at;
}

/* Fields up to NULL as a line that ends; its size. */
static size_t make_line(char line[LINE], ...) {
    va_list fields;
    va_start(fields, line);
    size_t at = 0;
    for (const char *field; (field = va_arg(fields, const char *));) {
        if (at) line[at++] = '\t';
        at = tt_put(line, at, field);
    }
    va_end(fields);
    line[at++] = '\n';
    return at;
}

/* --- what was recorded already, by hash; with the lock held */

struct seen {
    uint64_t *hashes;
    size_t room, count;
};

/* Not malloc: a file may be opened in a signal handler, in the midst of it. */
static void *new_pages(size_t size) {
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static uint64_t hash_of(const char *text, uint64_t number) {
    uint64_t hash = UINT64_C(14695981039346656037) ^ number * UINT64_C(0x9E3779B97F4A7C15);
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * UINT64_C(1099511628211);
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

/* 1 if it is new; 0 if it is not, or there is no more room to know. */
static int first_time(struct seen *seen, uint64_t hash) {
    if (2 * seen->count >= seen->room) {
        size_t room = seen->room ? 2 * seen->room : 1024;
        uint64_t *hashes = room > MAX_SEEN ? NULL : new_pages(room * sizeof *hashes);
        if (!hashes) return 0;
        for (size_t i = 0; i < seen->room; i++) {
            if (!seen->hashes[i]) continue;
            size_t at = seen->hashes[i] & (room - 1);
            while (hashes[at]) at = (at + 1) & (room - 1);
            hashes[at] = seen->hashes[i];
        }
        if (seen->hashes) munmap(seen->hashes, seen->room * sizeof *hashes);
        seen->hashes = hashes;
        seen->room = room;
    }
    size_t at = hash & (seen->room - 1);
    for (; seen->hashes[at]; at = (at + 1) & (seen->room - 1))
        if (seen->hashes[at] == hash) return 0;
    seen->hashes[at] = hash;
    seen->count++;
    return 1;
}

static void forget(struct seen *seen) {
    if (seen->hashes) munmap(seen->hashes, seen->room * sizeof *seen->hashes);
    *seen = (struct seen){0};
}

/* --- the record of this process */

static char folder[PATH_MAX];
static char record[PATH_MAX];
static int started, failed;
static struct seen places, files, misses;
static struct tt_objects_seen objects;

static pid_t process; /* whose state this is */

int tt_recording(void) { return folder[0] != '\0'; }

/* Made without the handlers of fork, as by vfork, _Fork or clone: the lock and all that is here is another process's. */
int tt_is_copy(void) { return (pid_t)syscall(SYS_getpid) != process; }

static const char *start_time(char text[512]) {
    tt_busy++;
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t size = file >= 0 ? read(file, text, 511) : 0;
    if (file >= 0) close(file);
    tt_busy--;
    text[size > 0 ? size : 0] = '\0';
    char *field = strrchr(text, ')'); /* the second; a program's name may hold anything */
    for (int i = 0; i < 20 && field; i++) field = strchr(field + 1, ' ');
    if (!field) return "0";
    field++;
    field[strcspn(field, " ")] = '\0';
    return field;
}

/* The path of a file of this process in the folder; 0 where there is none. */
int tt_record_name(char path[PATH_MAX], const char *end) {
    char time[512];
    if (mkdir(folder, 0777) && errno != EEXIST) { /* opening the file says what is wrong */
    }
    return snprintf(path, PATH_MAX, "%s/%ld-%s%s", folder, (long)getpid(), start_time(time), end) < PATH_MAX;
}

/* With the lock held. */
static void write_line(const char *line, size_t size) {
    if (failed) return;
    if (!started) {
        char program[PATH_MAX] = "", pid[24], first[LINE];
        snprintf(pid, sizeof pid, "%ld", (long)getpid());
        if (!tt_record_name(record, ".tsv")) record[0] = '\0';
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = '\0';
        started = 1;
        failed = append(record, first, make_line(first, "proc", pid, program, NULL));
#ifndef TORCHTAILOR_PRELOAD
        failed = failed || append(record, first, make_line(first, "lost", "which files were opened", NULL));
#endif
    }
    failed = failed || append(record, line, size);
    if (failed) tt_say("torchtailor: the record %s cannot be written (%s).", record, strerror(errno));
}

void tt_start_recording(void) {
    process = (pid_t)syscall(SYS_getpid);
    const char *named = tt_setting("TORCHTAILOR_RECORD");
    char current[PATH_MAX];
    if (!*named) return;
    if (*named == '/' || !getcwd(current, sizeof current)) snprintf(folder, sizeof folder, "%s", named);
    else if (snprintf(folder, sizeof folder, "%s/%s", current, named) >= (int)sizeof folder) folder[0] = '\0';
}

static int miss_said;

/* In the child, with the lock held: it is a process of its own. */
void tt_after_fork(void) {
    process = (pid_t)syscall(SYS_getpid);
    started = failed = miss_said = 0;
    forget(&places);
    forget(&files);
    forget(&misses);
    objects.known = 0;
}

void tt_record_place(const char *word, const struct tt_place *place, uint64_t size) {
    if (!tt_recording()) return;
    char line[LINE], address[24], length[24];
    snprintf(address, sizeof address, "0x%llx", (unsigned long long)place->address);
    snprintf(length, sizeof length, "0x%llx", (unsigned long long)size);
    size_t total = make_line(line, word, place->path, address, length, NULL);
    tt_acquire();
    if (first_time(&places, hash_of(place->path, place->address))) write_line(line, total);
    tt_release();
}

static void record_words(const char *word, const char *second, const char *third) {
    char line[LINE];
    size_t total = make_line(line, word, second, third, NULL);
    tt_acquire();
    if (first_time(&files, hash_of(line, total))) write_line(line, total);
    tt_release();
}

/* Memory that a header describes need not be there: the kernel looks. */
static int copy_memory(int memory, void *into, uint64_t from, size_t size) {
    return pread(memory, into, size, (off_t)from) == (ssize_t)size;
}

/* The size of an ELF image by its tables, or 0; `room` bytes may be read without asking. */
static uint64_t elf_size(const uint8_t *image, size_t room) {
    if (room < sizeof(Elf64_Ehdr) || memcmp(image, ELFMAG, SELFMAG) || image[EI_CLASS] != ELFCLASS64) return 0;
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_shoff > MAX_IMAGE || header.e_phoff > MAX_IMAGE) return 0;
    uint64_t sections = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
    uint64_t size = header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize;
    if (sections > size) size = sections;
    if (header.e_shentsize != sizeof(Elf64_Shdr) || sections > room) return size > room ? 0 : size;
    for (int i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + (uint64_t)i * sizeof section, sizeof section);
        if (section.sh_type == SHT_NOBITS || section.sh_offset > MAX_IMAGE || section.sh_size > MAX_IMAGE) continue;
        if (section.sh_offset + section.sh_size > size) size = section.sh_offset + section.sh_size;
    }
    return size;
}

/* The size of code in a library, of whatever kind: a container, an ELF image, or text up to its end. */
uint64_t tt_image_size(const void *code, size_t room) {
    if (room >= TT_CONTAINER_HEADER && tt_u32(code) == 0xBA55ED50) {
        uint64_t body = tt_u64((const uint8_t *)code + 8);
        return body == 0 && room >= TT_TICKET && !memcmp((const uint8_t *)code + 16, "TTPACK1", 8)
                   ? TT_TICKET
                   : tt_u16((const uint8_t *)code + 6) + body;
    }
    uint64_t size = elf_size(code, room);
    return size ? size : strnlen(code, room);
}

void tt_record_cubin(const void *elf) {
    if (!tt_recording()) return;
    int kept = errno;
    tt_busy++;
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    tt_busy--;
    Elf64_Ehdr header;
    uint64_t size = 0;
    uint8_t *copy = NULL;
    if (memory >= 0 && copy_memory(memory, &header, (uintptr_t)elf, sizeof header) && header.e_shoff < MAX_IMAGE) {
        /* First as far as the table of sections, then as far as the sections go. */
        uint64_t known = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
        if (known < sizeof header) known = sizeof header;
        copy = malloc(known);
        if (copy && copy_memory(memory, copy, (uintptr_t)elf, known)) size = elf_size(copy, known);
        if (size > known && size < MAX_IMAGE) {
            uint8_t *more = realloc(copy, size);
            if (more) copy = more;
            if (!more || !copy_memory(memory, copy, (uintptr_t)elf, size)) size = 0;
        }
    }
    if (memory >= 0) close(memory);
    if (size && size < MAX_IMAGE) {
        char length[24], crc[24];
        snprintf(length, sizeof length, "0x%llx", (unsigned long long)size);
        snprintf(crc, sizeof crc, "%08x", tt_crc(0, copy, size));
        record_words("cubin", length, crc);
    } else {
        record_words("lost", "a cubin whose size could not be read", NULL);
    }
    free(copy);
    errno = kept;
}

void tt_record_open(const char *path) {
    if (tt_recording()) record_words("open", path, NULL);
}

void tt_record_looked(const char *path) { record_words("look", path, NULL); }

/* What is opened by a process that has no state of its own, and a program that is started: between vfork and exec. */
void tt_record_unlocked(const char *path) {
    char own[PATH_MAX + 64], line[LINE];
    snprintf(own, sizeof own, "%s/%ld-started.tsv", folder, (long)getpid());
    if (mkdir(folder, 0777) && errno != EEXIST) return;
    append(own, line, make_line(line, "open", path, NULL));
}

struct names {
    char (*paths)[PATH_MAX];
    size_t count, room;
};

static int name_object(struct dl_phdr_info *object, size_t size, void *data) {
    (void)size;
    struct names *names = data;
    if (!object->dlpi_name || !strchr(object->dlpi_name, '/')) return 0; /* the program, the kernel's own */
    if (strstr(object->dlpi_name, "/libtorchtailor-")) return 0;
    if (names->count == names->room) {
        size_t room = names->room ? 2 * names->room : 64;
        void *more = new_pages(room * sizeof *names->paths);
        if (!more) return 1;
        if (names->paths) {
            memcpy(more, names->paths, names->room * sizeof *names->paths);
            munmap(names->paths, names->room * sizeof *names->paths);
        }
        names->paths = more;
        names->room = room;
    }
    snprintf(names->paths[names->count++], PATH_MAX, "%s", object->dlpi_name);
    return 0;
}

/* The loader opens libraries by itself: they are seen in its list. */
void tt_record_objects(void) {
    if (!tt_recording() || !tt_objects_changed(&objects)) return;
    struct names names = {NULL, 0, 0};
    tt_each_object(name_object, &names);
    for (size_t i = 0; i < names.count; i++) {
        char whole[PATH_MAX];
        const char *path = names.paths[i];
        if (*path != '/') path = realpath(path, whole) ? whole : NULL;
        if (path) tt_record_open(path);
    }
    if (names.paths) munmap(names.paths, names.room * sizeof *names.paths);
}

/* --- misses */

static void make_parents(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
}

static int misses_file(char path[PATH_MAX]) {
    const char *named = tt_setting("TORCHTAILOR_MISSES"), *cache = tt_setting("XDG_CACHE_HOME");
    const char *home = tt_setting("HOME");
    struct stat info;
    if (!strcmp(named, "none")) return 0;
    if (*named) return snprintf(path, PATH_MAX, "%s", named) < PATH_MAX;
    if (*cache != '/' && *home != '/') return 0;
    /* Root who has kept the variables of a user (sudo) writes nothing where that user's links lead. */
    if (stat(*cache == '/' ? cache : home, &info) ? errno != ENOENT : info.st_uid != geteuid()) return 0;
    if (*cache == '/') return snprintf(path, PATH_MAX, "%s/torchtailor/misses.tsv", cache) < PATH_MAX;
    return snprintf(path, PATH_MAX, "%s/.cache/torchtailor/misses.tsv", home) < PATH_MAX;
}

/* With the lock held; `pack` is NULL where there was none. */
void tt_note_miss(const struct tt_place *place, const uint8_t key[TT_KEY], const char *pack) {
    const char *quiet = tt_setting("TORCHTAILOR_QUIET");
    if (pack && !miss_said) {
        miss_said = 1;
        if (!*quiet || !strcmp(quiet, "0"))
            tt_say("torchtailor: %s uses GPU code that its workload trace did not name; loading it from %s "
                   "(TORCHTAILOR_QUIET=1 hides this line).", place->path, pack);
    }
    if (!first_time(&misses, hash_of(place->path, place->address))) return;
    char path[PATH_MAX], line[LINE], address[24], text[2 * TT_KEY + 1];
    struct stat info;
    if (!misses_file(path)) return;
    int kept = errno;
    make_parents(path);
    if (stat(path, &info) || info.st_size < MAX_MISSES) { /* a service that starts often does not fill the disk */
        snprintf(address, sizeof address, "0x%llx", (unsigned long long)place->address);
        tt_key_text(key, text);
        append(path, line, make_line(line, "miss", place->path, address, "0x28", text, NULL));
    }
    errno = kept;
}
