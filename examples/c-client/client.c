/* A client on the command line, in C: it takes one question of a server and writes one payload.
 *
 *     cc -std=c11 -O2 -ffp-contract=off -DQB_STATIC -I NATIVE client.c NATIVE/quietbit.c NATIVE/quietbit_client.c -lm -o client
 *     client TABLE LEDGER DESCRIPTION UPDATE PAYLOAD [KEY]
 *
 * NATIVE is the folder src/quietbit/kernel/c. TABLE is what the owner allows (quietbit.client_table), LEDGER
 * the file of past releases, DESCRIPTION the text that the server sent, UPDATE float32 numbers, and PAYLOAD what is to
 * be sent. `client TABLE LEDGER` starts a ledger; a ledger that is missing later is an error, never a new budget. KEY is
 * 64 hexadecimal digits for tests: a release whose key is known protects nobody.
 *
 * Exit status: 0, or the qb_status of quietbit_client.h, or 20 for a file that cannot be read or written.
 */
#define _POSIX_C_SOURCE 200809L
#include "quietbit_client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_TROUBLE = 20 };

static void stop(int status, const char *why) {
    fprintf(stderr, "client: %s\n", why);
    exit(status);
}

/* The whole of an open file in fresh memory. */
static void *read_open(int file, const char *path, size_t *size) {
    struct stat about;
    if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) stop(FILE_TROUBLE, path);
    *size = (size_t)about.st_size;
    char *content = malloc(*size + 8);
    if (!content) stop(FILE_TROUBLE, "not enough memory");
    for (size_t at = 0; at < *size;) {
        ssize_t got = pread(file, content + at, *size - at, (off_t)at);
        if (got <= 0) stop(FILE_TROUBLE, path);
        at += (size_t)got;
    }
    return content;
}

static void *read_file(const char *path, size_t *size) {
    int file = open(path, O_RDONLY | O_NONBLOCK); /* a FIFO is refused, and not waited for */
    char *content = read_open(file, path, size);
    close(file);
    return content;
}

/* A ledger that others may change, or under another name, is worth nothing. */
static void check_owner(int file) {
    struct stat about;
    if (fstat(file, &about) != 0 || about.st_nlink != 1 || about.st_uid != geteuid() || (about.st_mode & 022) != 0) {
        stop(FILE_TROUBLE, "the ledger must be this user's, with one name, and nobody else may write it");
    }
}

/* Write to the end of a file that is flushed to the disk before anything else happens. */
static void append(int file, const char *text, size_t length) {
    if (write(file, text, length) != (ssize_t)length || fsync(file) != 0) stop(FILE_TROUBLE, "the ledger was not written");
}

static void make_key(const char *hex, uint8_t key[QB_KEY_BYTES]) {
    if (!hex) {
        int source = open("/dev/urandom", O_RDONLY);
        if (source < 0 || read(source, key, QB_KEY_BYTES) != QB_KEY_BYTES) stop(FILE_TROUBLE, "no randomness");
        close(source);
        return;
    }
    fprintf(stderr, "client: the key is given: this release protects nobody\n");
    for (int i = 0; i < QB_KEY_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) stop(FILE_TROUBLE, "a key has 64 hexadecimal digits");
        key[i] = (uint8_t)byte;
    }
}

int main(int count, char **words) {
    if (count != 3 && count != 6 && count != 7) stop(FILE_TROUBLE, "client TABLE LEDGER [DESCRIPTION UPDATE PAYLOAD [KEY]]");
    if (qb_self_test() != 0) stop(QB_TABLE_DAMAGED, "this build rounds otherwise: use -ffp-contract=off");
    size_t table_size, text_size, update_size, ledger_size, length;
    qb_table table;
    char line[QB_LINE_BYTES];
    void *allowed = read_file(words[1], &table_size);
    qb_status status = qb_table_open(allowed, table_size, &table);
    if (status == QB_TOO_LARGE) stop(status, "a release of this table does not fit into this machine's memory");
    if (status != QB_OK) stop(status, "the table is damaged");
    if (count == 3) {
        int file = open(words[2], O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0600);
        if (file < 0) stop(FILE_TROUBLE, "the ledger is there already, or cannot be made");
        append(file, line, qb_ledger_begin(&table, line));
        return close(file);
    }
    char *text = read_file(words[3], &text_size);
    const qb_entry *entry = qb_find(&table, text, text_size);
    if (!entry) stop(QB_UNKNOWN_MECHANISM, "the owner does not allow this mechanism");
    float *update = read_file(words[4], &update_size);
    if (update_size != 4 * entry->dimension) stop(QB_WRONG_DIMENSION, "the update has another dimension");

    /* One process at a time from reading the ledger to noting the release in it. It is read through the descriptor
     * that is locked: closing any other one of the same file would end the lock. */
    int file = open(words[2], O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (file < 0 || fcntl(file, F_SETLKW, &lock) != 0) stop(FILE_TROUBLE, "the ledger is missing");
    check_owner(file);
    char *ledger = read_open(file, words[2], &ledger_size);
    uint64_t spent;
    if (qb_ledger_spent(&table, ledger, ledger_size, &spent) != QB_OK) stop(QB_LEDGER_DAMAGED, "the ledger is damaged");
    if (qb_ledger_line(&table, entry, spent, line, &length) != QB_OK) stop(QB_OVER_BUDGET, "the budget is spent");
    append(file, line, length); /* noted before it is drawn: whatever happens from here on has been paid for */
    close(file);

    uint8_t key[QB_KEY_BYTES], *payload = malloc(qb_payload_size(entry));
    void *workspace = malloc(qb_workspace_size(entry) + 8);
    if (!payload || !workspace) stop(FILE_TROUBLE, "not enough memory");
    make_key(count == 7 ? words[6] : 0, key);
    status = qb_release(&table, entry, update, update_size / 4, key, workspace, payload);
    if (status != QB_OK) stop(status, "the update cannot be released");
    FILE *out = fopen(words[5], "wb");
    if (!out || fwrite(payload, 1, qb_payload_size(entry), out) != qb_payload_size(entry) || fclose(out) != 0) {
        stop(FILE_TROUBLE, words[5]);
    }
    memset(key, 0, sizeof key);
    return 0;
}
