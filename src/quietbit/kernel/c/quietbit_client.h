/* A quietbit client without Python: what is allowed, what it costs, and one release.
 *
 *     qb_table table;
 *     qb_table_open(bytes, size, &table);                      what the owner of the device allows (wire/portable.py)
 *     const qb_entry *entry = qb_find(&table, text, length);   the mechanism that a server asks for, or null
 *     qb_ledger_spent(&table, ledger, ledger_size, &spent);    what was released before
 *     qb_ledger_line(&table, entry, spent, line);              refused beyond the budget; write the line to a file
 *                                                              and flush it to the disk BEFORE the release
 *     qb_release(&table, entry, update, count, key, workspace, payload);
 *
 * A mechanism is known by the SHA-256 of the text that describes it, so nothing that a server sends is interpreted: a
 * text that the owner did not allow is refused, whatever it says. Prices and tables are the owner's, too. Functions
 * neither allocate nor read files; quietbit.h says more about buffers, threads and rounding.
 */
#ifndef QUIETBIT_CLIENT_H
#define QUIETBIT_CLIENT_H

#include "quietbit.h"

#if !defined(QB_CLIENT_API)
#define QB_CLIENT_API QB_API
#endif

enum {
    QB_KEY_BYTES = 32,  /* of one release, fresh from the operating system */
    QB_LINE_BYTES = 128 /* of a line of the ledger, its newline included */
};

typedef enum {
    QB_OK = 0,
    QB_TABLE_DAMAGED = 1,     /* not a table, another version, or not the bytes that were written */
    QB_UNKNOWN_MECHANISM = 2, /* the owner allows no mechanism with this description */
    QB_WRONG_DIMENSION = 3,   /* the update has another number of coordinates */
    QB_TOO_LARGE = 4,         /* a release of this table needs more memory than this machine can address */
    QB_LEDGER_DAMAGED = 5,    /* the ledger is of another table, or a line is not as it was written */
    QB_OVER_BUDGET = 6        /* the release would cost more than is left */
} qb_status;

/* What the table says of one mechanism; numbers are little-endian, places are bytes from the table's begin. */
typedef struct {
    uint8_t identity[32];    /* SHA-256 of the canonical text (docs/reference/wire_format.md, Identity) */
    uint8_t description[32]; /* SHA-256 of the description that servers of Flower and NVFlare send */
    uint64_t cost;           /* of one release, in the table's units */
    uint32_t kind, order;    /* QB_CODES or QB_SEED; norm of the ball: 1 or 2 */
    uint64_t dimension;
    double radius;
    uint32_t bits, levels; /* codes: the law of one coordinate */
    double scale, clamp[2];
    double square_limit;         /* a rotated update whose squares add up to more is released as zero */
    uint64_t block, seed;        /* of the public rotation; a block of 0 is none */
    double plan_rate, plan_offset; /* the polynomial of one bit (tables.py); no coefficients where cells decide */
    float coefficient[QB_MAX_COEFFICIENTS];
    uint32_t coefficient_count, width, centred, cells;
    double inverse, cell_offset;
    float half;
    uint32_t has_rows;           /* seeds: whether all clients of a round keep the same rows, and their number */
    uint64_t keep, rows, tries;  /* tries: candidates before the next is sent unseen */
    uint64_t edge_count;
    double largest;
    uint64_t law[6];   /* places of knots, their tails, base, its tail, slope, its tail */
    uint64_t table[5]; /* places of start, step, lowest, highest, code */
    uint64_t edges, profile_levels, quantiles;
} qb_entry;

enum { QB_CODES = 1, QB_SEED = 2 };

typedef struct {
    const uint8_t *bytes;
    size_t size;
    const qb_entry *entries;
    uint32_t count;
    uint64_t budget;      /* in units */
    uint8_t digest[32];   /* names the table in ledgers */
} qb_table;

/* Check a table, whose bytes begin at a multiple of eight and stay where they are. */
QB_CLIENT_API qb_status qb_table_open(const void *bytes, size_t size, qb_table *table);
/* The mechanism of a text, or null: the canonical text, or the description of an engine's server. */
QB_CLIENT_API const qb_entry *qb_find(const qb_table *table, const char *text, size_t length);
/* Check a ledger, which begins with `qb_ledger_begin`, and add up what it says was spent. */
QB_CLIENT_API size_t qb_ledger_begin(const qb_table *table, char line[QB_LINE_BYTES]);
QB_CLIENT_API qb_status qb_ledger_spent(const qb_table *table, const char *text, size_t length, uint64_t *spent);
/* Write the line of one release; `*length` is its size. Refused if the budget does not allow the release. */
QB_CLIENT_API qb_status qb_ledger_line(const qb_table *table, const qb_entry *entry, uint64_t spent, char line[QB_LINE_BYTES],
                                size_t *length);
QB_CLIENT_API size_t qb_payload_size(const qb_entry *entry);
QB_CLIENT_API size_t qb_workspace_size(const qb_entry *entry);
/* Clip, randomise and pack `count` float values into a payload. An update with a NaN or an infinity is released as zero,
 * so that whether something is sent does not depend on it; nothing but the dimension is refused. The workspace begins
 * at a multiple of eight, and holds the clipped update afterwards: keep it as private as the update. */
QB_CLIENT_API qb_status qb_release(const qb_table *table, const qb_entry *entry, const float *update, size_t count,
                            const uint8_t key[QB_KEY_BYTES], void *workspace, uint8_t *payload);
QB_CLIENT_API void qb_sha256(const void *data, size_t size, uint8_t digest[32]);

#endif
