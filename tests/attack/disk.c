/* A disk that fails, or a process that dies, at a chosen call: loaded before the C library, so that
 * SQLite meets it, too. Calls on files and folders count; pipes, sockets and terminals do not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITES = 1, LOCKS = 2 };
static long left;
static int which, failure;

/* The `count`-th call from now, of these kinds, fails with the error `code`; 0 kills the process. */
void disk_arm(long count, int kinds, int code)
{
    left = count;
    which = kinds;
    failure = code;
}

/* Return how many calls are left; 0 or less where the failure has happened. */
long disk_left(void)
{
    return left;
}

int disk_moment(int kind)
{
    if (!(which & kind) || --left != 0)
        return 0;
    if (!failure)
        kill(getpid(), SIGKILL);
    errno = failure;
    return -1;
}

static int is_file(int handle)
{
    struct stat status;
    int before = errno;
    int found = fstat(handle, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
    errno = before;
    return found;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int handle, const void *data, size_t size)
{
    if (is_file(handle) && disk_moment(WRITES))
        return -1;
    return REAL(ssize_t, write, int, const void *, size_t)(handle, data, size);
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t place)
{
    if (disk_moment(WRITES))
        return -1;
    return REAL(ssize_t, pwrite, int, const void *, size_t, off_t)(handle, data, size, place);
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t place)
{
    if (disk_moment(WRITES))
        return -1;
    return REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t)(handle, data, size, place);
}

int fsync(int handle)
{
    return disk_moment(WRITES) ? -1 : REAL(int, fsync, int)(handle);
}

int fdatasync(int handle)
{
    return disk_moment(WRITES) ? -1 : REAL(int, fdatasync, int)(handle);
}

int ftruncate(int handle, off_t size)
{
    return disk_moment(WRITES) ? -1 : REAL(int, ftruncate, int, off_t)(handle, size);
}

int ftruncate64(int handle, off64_t size)
{
    return disk_moment(WRITES) ? -1 : REAL(int, ftruncate64, int, off64_t)(handle, size);
}

int unlink(const char *path)
{
    return disk_moment(WRITES) ? -1 : REAL(int, unlink, const char *)(path);
}

int rename(const char *from, const char *to)
{
    return disk_moment(WRITES) ? -1 : REAL(int, rename, const char *, const char *)(from, to);
}

static int control(int (*real)(int, int, ...), int handle, int what, void *value)
{
    if ((what == F_SETLK || what == F_SETLKW) && ((struct flock *)value)->l_type != F_UNLCK
        && disk_moment(LOCKS))
        return -1;
    return real(handle, what, value);
}

int fcntl(int handle, int what, ...)
{
    va_list rest;
    va_start(rest, what);
    void *value = va_arg(rest, void *);
    va_end(rest);
    return control(REAL(int, fcntl, int, int, ...), handle, what, value);
}

int fcntl64(int handle, int what, ...)
{
    va_list rest;
    va_start(rest, what);
    void *value = va_arg(rest, void *);
    va_end(rest);
    return control(REAL(int, fcntl64, int, int, ...), handle, what, value);
}
