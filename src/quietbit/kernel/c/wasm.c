/* The client as one WebAssembly module without imports: what a page calls, and a place for its buffers.
 *
 *     zig cc -target wasm32-freestanding -msimd128 -mbulk-memory -Oz -std=c11 -ffp-contract=off -fno-math-errno \
 *         -nostdlib -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=262144 wasm.c -o quietbit.wasm
 *
 * Both sources are compiled as one, and every function that no page calls is static: the compiler leaves out what a
 * client does not use.
 */
#define QB_SMALL 1
#define QB_API static __attribute__((unused))
#define QB_CLIENT_API static __attribute__((unused))
#include "quietbit.c"
#include "quietbit_client.c"

#define EXPORT(name) __attribute__((export_name(#name), visibility("default")))

extern u8 __heap_base; /* where the linker's own data ends */

static size_t used = 0;

/* Memory at a multiple of 16, or null. Whatever one call of a page needs is taken one after the other, and given back
 * and wiped together. */
EXPORT(reserve) void *reserve(size_t size) {
    enum { PAGE = 65536 };
    size_t begin = ((size_t)&__heap_base + used + 15) / 16 * 16, end = begin + size;
    size_t pages = __builtin_wasm_memory_size(0);
    if (end < begin) return 0;
    if (end > pages * PAGE && __builtin_wasm_memory_grow(0, (end - pages * PAGE + PAGE - 1) / PAGE) == (size_t)-1) return 0;
    used = end - (size_t)&__heap_base;
    return (void *)begin;
}

EXPORT(mark) size_t mark(void) { return used; }

/* Give back all that was reserved since a mark. */
EXPORT(rewind) void rewind_to(size_t before) {
    if (before < used) memset(&__heap_base + before, 0, used - before);
    if (before < used) used = before;
}

static qb_table opened;

EXPORT(self_test) int self_test(void) { return qb_self_test(); }
EXPORT(open) int open_table(const void *bytes, size_t size) { return qb_table_open(bytes, size, &opened); }
EXPORT(budget) double budget(void) { return (double)opened.budget; }
EXPORT(find) const qb_entry *find(const char *text, size_t length) { return qb_find(&opened, text, length); }
EXPORT(cost) double cost(const qb_entry *entry) { return (double)entry->cost; }
EXPORT(dimension) double dimension(const qb_entry *entry) { return (double)entry->dimension; }
EXPORT(radius) double radius(const qb_entry *entry) { return entry->radius; }
EXPORT(payload_size) size_t payload_size(const qb_entry *entry) { return qb_payload_size(entry); }
EXPORT(workspace_size) size_t workspace_size(const qb_entry *entry) { return qb_workspace_size(entry); }
EXPORT(ledger_begin) size_t ledger_begin(char *line) { return qb_ledger_begin(&opened, line); }

/* What was spent, or minus the status. */
EXPORT(ledger_spent) double ledger_spent(const char *text, size_t length) {
    u64 spent;
    qb_status status = qb_ledger_spent(&opened, text, length, &spent);
    return status == QB_OK ? (double)spent : -(double)status;
}

/* The length of the line of a release, or minus the status. */
EXPORT(ledger_line) int ledger_line(const qb_entry *entry, double spent, char *line) {
    size_t length;
    qb_status status = qb_ledger_line(&opened, entry, (u64)spent, line, &length);
    return status == QB_OK ? (int)length : -(int)status;
}

EXPORT(release) int release(const qb_entry *entry, const float *update, size_t count, const u8 *key, void *workspace,
                            u8 *payload) {
    return qb_release(&opened, entry, update, count, key, workspace, payload);
}
