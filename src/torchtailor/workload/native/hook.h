/* What the parts of the hook know of each other. Two libraries are made of them:
 *   libtorchtailor-hook.so.1    cut libraries name it as needed; their renamed imports (renamed.txt) lead here
 *   libtorchtailor-preload.so   TORCHTAILOR_PRELOAD is defined: LD_PRELOAD, for recording and for `torchtailor run`
 *
 * Rules: nothing on the launch path; no call of dlopen, dlsym or dladdr while the lock is held or in a handler of fork (a
 * library's constructor may wait for either inside of dlopen); dl_iterate_phdr in objects.c only; memory that was handed
 * to the driver is never freed. */
#ifndef TORCHTAILOR_HOOK_H
#define TORCHTAILOR_HOOK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined __linux__ || !defined __GLIBC__
#error "the hook is for Linux with glibc"
#endif
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs and GPU code are little-endian");
_Static_assert(sizeof(void *) == 8, "GPU code exists for 64-bit programs only");

#define TT_EXPORT __attribute__((visibility("default")))
/* Called before the libraries around us are ready, by a sanitizer that looks up the functions it stands in for: such code
 * calls no function of the C library that has a stand-in, and is not instrumented itself. */
#define TT_EARLY __attribute__((no_sanitize("address", "undefined", "thread")))
#define TT_KEY 16
#define TT_TICKET 40 /* the header of an empty container, "TTPACK1\0", the key */
#define TT_CONTAINER_HEADER 16
enum { TT_LINE = 2 * PATH_MAX + 256 };

/* One lock for all that threads share. A thread that is inside the hook is busy: files that it opens then, also from a
 * signal handler, are not recorded. */
void tt_acquire(void);
void tt_release(void);
extern _Thread_local int tt_busy __attribute__((tls_model("initial-exec")));

/* loads of what may be unaligned */
#define TT_LOAD(name, type)                                                                                            \
    static inline type name(const void *at) {                                                                          \
        type value;                                                                                                    \
        memcpy(&value, at, sizeof value);                                                                              \
        return value;                                                                                                  \
    }
TT_LOAD(tt_u16, uint16_t)
TT_LOAD(tt_u32, uint32_t)
TT_LOAD(tt_u64, uint64_t)
uint32_t tt_crc(uint32_t crc, const void *data, size_t size);

/* --- objects.c: what is loaded in this process */
typedef void *(*tt_dlsym_function)(void *, const char *);
struct tt_place {
    uintptr_t address;   /* as the object's own headers count */
    size_t room;         /* bytes from there to the end of the segment */
    char path[PATH_MAX]; /* absolute; of the program, its /proc/self/exe */
};
struct tt_objects_seen {
    unsigned long long adds;
    int known;
};
int tt_place_of(const void *pointer, struct tt_place *place);
int tt_is_own(const void *pointer);
int tt_is_container(const void *pointer);
int tt_objects_changed(struct tt_objects_seen *seen);
size_t tt_object_count(void);
void tt_each_object(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data);
int tt_forked(void); /* without exec since */
void tt_objects_before_fork(void);
void tt_objects_after_fork(int in_child);
struct tt_mapping { /* a line of /proc/self/maps */
    uintptr_t start, end;
    uint64_t offset;
    int runs, writes, is_shared; /* may be executed, written to */
    const char *path; /* empty where it is no file */
};
void tt_each_mapping(void (*callback)(const struct tt_mapping *, void *), void *data);
void tt_lead_cudart_here(tt_dlsym_function ours);
void tt_lead_deepbound_here(size_t first, const void *real, tt_dlsym_function ours);

/* --- packs.c: containers by key */
enum { TT_TARGETS = 8 };
struct tt_found {
    const void *container;
    const char *pack; /* where it came from, for people */
    int split;        /* from a pack that has all code of a library for a GPU: nothing was missed */
    unsigned targets[TT_TARGETS], target_count; /* of such packs: 90 for sm_90 */
    char looked[3 * PATH_MAX];
};
/* With the lock held. */
int tt_find_container(const char *library, const uint8_t key[TT_KEY], struct tt_found *found);

/* The same, with the packs that came since folders were looked at; `is_last`: what is refused is said again. */
int tt_find_container_again(const char *library, const uint8_t key[TT_KEY], struct tt_found *found, int is_last);
/* Seconds to wait for packs that are not there. */
long tt_pack_wait(void);

/* NULL, or what is wrong with the first bytes of a pack of this size. */
const char *tt_check_pack_header(const uint8_t header[64], uint64_t size);
/* Opens a pack of a library by its path, if it may be used: -1 and a reason, which is NULL where there is none. Handlers of
 * signals call it. */
struct stat;
int tt_open_pack(const char *library, const char *path, int is_named, struct stat *info, const char **wrong);

/* --- zstd.c: unpacking; pages.c: pages of libraries */
#define TT_ZSTD_BOUND(size) ((size_t)(size) + ((size_t)(size) >> 8) + 512)
/* The size of what one frame holds, or 0 where it is none or does not fit. Up to 8 bytes before `from` are read, so these
 * must be there. Not for two threads at once. */
size_t tt_unzstd(uint8_t *into, size_t room, const uint8_t *from, size_t size);
void tt_pages_after_fork(void);

/* The distribution whose packs have all code of a library, as it is installed. */
struct tt_package {
    char name[128], version[128];
};
/* With the lock held. */
int tt_find_package(const char *library, struct tt_package *package);

/* --- record.c: what is told to people and written to files */
/* One sentence or two, without a newline. */
void tt_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
size_t tt_add_shown(char *line, size_t used, size_t room, const char *text);
const char *tt_setting(const char *name);
int tt_recording(void);
int tt_is_copy(void);
void tt_start_recording(void);
void tt_after_fork(void);
void tt_record_place(const char *word, const struct tt_place *place, uint64_t size);
void tt_record_cubin(const void *elf);
void tt_record_open(const char *path);
void tt_record_looked(const char *path);
void tt_record_unlocked(const char *path);
void tt_record_objects(void);
uint64_t tt_image_size(const void *code, size_t room);
void tt_note_miss(const struct tt_place *place, const uint8_t key[TT_KEY], const char *pack);
int tt_record_name(char path[PATH_MAX], const char *end);
size_t tt_put(char *line, size_t at, const char *text);
void tt_key_text(const uint8_t key[TT_KEY], char text[2 * TT_KEY + 1]);

/* --- touched.c: which pages of libraries a process touches */
int tt_leave_first(void);
void tt_watch_pages(int in_child);
void tt_note_pages(void);
void tt_before_exec(void);
void tt_after_exec(void);

/* --- hook.c: calls on their way to the driver */
void *tt_wrap_named(const char *name, void *function);
void *tt_real_symbol(void *handle, const char *name);

#endif
