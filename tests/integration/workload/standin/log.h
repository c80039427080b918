/* A line to the file STANDIN_LOG names: what arrived where. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void log_line(const char *line) {
    const char *path = getenv("STANDIN_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        if (write(file, line, strlen(line)) < 0) abort();
        close(file);
    }
}

static uint32_t crc_of(const uint8_t *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    return ~crc;
}

/* Logs the function and the container's checksum; 209 (no binary for the GPU) if the container is empty. */
static int arrived(const char *function, const void *code, size_t size) {
    const uint8_t *at = code;
    uint32_t magic;
    memcpy(&magic, at, 4);
    if (magic == 0x466243B1) {
        memcpy(&at, at + 8, 8);
        memcpy(&magic, at, 4);
    }
    if (magic == 0xBA55ED50) {
        uint64_t body;
        memcpy(&body, at + 8, 8);
        if (size && size != 16 + body) function = "WRONG SIZE";
        size = 16 + body;
    }
    if (!size) size = strlen((const char *)at);
    char line[128];
    snprintf(line, sizeof line, "%s %08x\n", function, crc_of(at, size));
    log_line(line);
    return size == 16 ? 209 : 0;
}
