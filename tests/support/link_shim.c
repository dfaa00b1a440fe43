/* Lets a test make what a process sends over TCP slow: the file says how many bytes a second.

   Only of processes that vLLM calls its workers, whose large sends are KV; the servers beside them
   answer as ever. Without the file, or with 0 in it, nothing is slowed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LARGE_BYTES = 4096 };

static ssize_t read_text(const char *path, char *text, size_t room) {
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return -1;
    ssize_t length = read(file, text, room - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    return length;
}

static int is_worker(void) {
    static int known = -1;
    char title[64];
    /* The title is set late: who is no worker yet may become one. */
    if (known != 1) {
        ssize_t length = read_text("/proc/self/cmdline", title, sizeof title);
        known = length > 0 && strncmp(title, "VLLM::Worker", 12) == 0;
    }
    return known;
}

static void delay(int socket, size_t bytes) {
    char text[32];
    int domain = 0;
    socklen_t size = sizeof domain;
    if (bytes < LARGE_BYTES || read_text(getenv("LINK_SHIM_FILE"), text, sizeof text) <= 0) return;
    double rate = strtod(text, NULL);
    if (rate <= 0 || !is_worker()) return;
    if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) || domain != AF_INET) return;
    double seconds = bytes / rate;
    struct timespec wait = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&wait, NULL);
}

ssize_t send(int socket, const void *data, size_t bytes, int flags) {
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real) real = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    ssize_t sent = real(socket, data, bytes, flags);
    if (sent > 0) delay(socket, (size_t)sent);
    return sent;
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real) real = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    ssize_t sent = real(socket, message, flags);
    if (sent > 0) delay(socket, (size_t)sent);
    return sent;
}
