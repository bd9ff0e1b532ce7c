/* A stand-in for libnvidia-ml.so.1: the calls of NVML that hpcbench makes, at the C interface.

   tests/nvml_standins.py compiles it for one machine: -DMACHINE_H100 and so on, with -DSLEEPS or
   -DCRASHES naming calls that do so, and -DGARBLED for texts that are not UTF-8. As the library
   does, it answers UNINITIALIZED before nvmlInit, INVALID_ARGUMENT to what is no handle, no link or
   no place for an answer, and ARGUMENT_VERSION_MISMATCH to a struct of a version that it does not
   know. Signatures, structs and error codes are those of nvml.h. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6,
       INSUFFICIENT_SIZE, TIMEOUT = 10, VERSION_MISMATCH = 25 };
enum { SELF_BOARD = 0, ONE_SWITCH = 10, HOST_BRIDGE = 30, NODE = 40, SYSTEM = 50 };
enum { TO_GPU = 0, TO_SWITCH = 2 };

typedef struct gpu { int number, slice; } *device;        /* slice 0: a GPU, else one of MIG */
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; } value;
typedef struct { unsigned id, scope; long long time, latency; unsigned type; int result; value is; } field;
typedef struct { device gpu; unsigned long long type, data; unsigned instance, compute; } event;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique;
                 unsigned char state; unsigned health; } fabric;     /* state is one byte */

#if defined MACHINE_V100
enum { GPUS = 8, SLICES = 0, LINKS = 6 };                 /* DGX-1V, a hybrid cube mesh */
static const char *ADDRESS[] = {"00000000:06:00.0", "00000000:07:00.0", "00000000:0A:00.0",
    "00000000:0B:00.0", "00000000:85:00.0", "00000000:86:00.0", "00000000:89:00.0",
    "00000000:8A:00.0"};
static const int PEER[8][6] = {                           /* the GPU at the end of each link */
    {1, 2, 3, 3, 4, 4}, {0, 2, 2, 3, 5, 5}, {0, 1, 1, 3, 3, 6}, {0, 0, 1, 2, 2, 7},
    {0, 0, 5, 6, 7, 7}, {1, 1, 4, 6, 6, 7}, {2, 4, 5, 5, 7, 7}, {3, 4, 4, 5, 6, 6}};
#elif defined MACHINE_A10
enum { GPUS = 4, SLICES = 0, LINKS = 0 };                 /* PCIe only: two at each processor */
static const char *ADDRESS[] = {"00000000:17:00.0", "00000000:31:00.0", "00000000:B1:00.0",
    "00000000:CA:00.0"};
#elif defined MACHINE_MIG
enum { GPUS = 1, SLICES = 2, LINKS = 0 };                 /* an A100 in two parts */
static const char *ADDRESS[] = {"00000000:07:00.0"};
#elif defined MACHINE_NONE
enum { GPUS = 0, SLICES = 0, LINKS = 0 };                 /* a driver, and no GPU in sight */
static const char *ADDRESS[] = {""};
#else
enum { GPUS = 8, SLICES = 0, LINKS = 18 };                /* HGX H100: all links at switches */
static const char *ADDRESS[] = {"00000000:1B:00.0", "00000000:43:00.0", "00000000:52:00.0",
    "00000000:61:00.0", "00000000:9D:00.0", "00000000:C3:00.0", "00000000:D1:00.0",
    "00000000:DF:00.0"};
#endif

static struct gpu DEVICES[(GPUS ? GPUS : 1) * (SLICES + 1)];
static int is_open, is_registered;
static unsigned reads;
static int *volatile nowhere;

/* What every call begins with: it hangs or crashes where it was built to. */
static void enter(const char *call) {
#ifdef SLEEPS
    if (strstr(SLEEPS, call)) {
        struct timespec left = {30, 0};
        while (nanosleep(&left, &left)) {}
    }
#endif
#ifdef CRASHES
    if (strstr(CRASHES, call)) *nowhere = 0;
#endif
    (void)call;
}
#define ENTER do { enter(__func__); if (!is_open) return UNINITIALIZED; } while (0)
#define NEED(condition) do { if (!(condition)) return INVALID_ARGUMENT; } while (0)

static int is_device(device gpu) {
    for (unsigned at = 0; at < sizeof DEVICES / sizeof *DEVICES; at++)
        if (gpu == &DEVICES[at]) return GPUS > 0;
    return 0;
}
/* A query of one GPU. A part of one is refused where ``parts`` is 0. */
static int asked(device gpu, const void *answer, int parts) {
    if (!is_device(gpu) || !answer) return INVALID_ARGUMENT;
#ifdef MACHINE_DENIED
    return NO_PERMISSION;
#endif
    return gpu->slice && !parts ? NOT_SUPPORTED : SUCCESS;
}
#define ASK(gpu, answer, parts) do { ENTER; int no = asked(gpu, answer, parts); if (no) return no; } \
    while (0)

static int text(char *to, unsigned length, const char *from) {
    if (!to) return INVALID_ARGUMENT;
    if (strlen(from) + 3 > length) return INSUFFICIENT_SIZE;
#ifdef GARBLED
    snprintf(to, length, "%s\xff\xfe", from);
#else
    snprintf(to, length, "%s", from);
#endif
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    enter(__func__);
    for (int at = 0; at < GPUS * (SLICES + 1); at++)
        DEVICES[at] = (struct gpu){at / (SLICES + 1), at % (SLICES + 1)};
    is_open = 1;
    (void)flags;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { ENTER; is_open = 0; return SUCCESS; }
const char *nvmlErrorString(int result) {
    (void)result;
#ifdef GARBLED
    return "garbled \xff\xfe";
#else
    return "an error of the stand-in";
#endif
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER;
#ifdef MACHINE_OLD
    return text(version, length, "418.226.00");
#else
    return text(version, length, "580.65.06");
#endif
}
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER; NEED(count); *count = GPUS; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu) {
    ENTER;
    NEED(gpu && index < GPUS);
    *gpu = &DEVICES[index * (SLICES + 1)];
    return SUCCESS;
}
static void uuid_of(device gpu, char *to, unsigned length) {
    snprintf(to, length, "%s-%08x-1111-2222-3333-44444444%04x", gpu->slice ? "MIG" : "GPU",
             gpu->number, gpu->slice);
}
int nvmlDeviceGetUUID(device gpu, char *uuid, unsigned length) {
    char name[64];
    ENTER;
    NEED(is_device(gpu) && uuid);
    uuid_of(gpu, name, sizeof name);
    return text(uuid, length, name);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device *gpu) {
    char name[64];
    ENTER;
    NEED(uuid && gpu);
    for (int at = 0; at < GPUS * (SLICES + 1); at++) {
        uuid_of(&DEVICES[at], name, sizeof name);
        if (!strcmp(uuid, name)) { *gpu = &DEVICES[at]; return SUCCESS; }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetPciInfo_v3(device gpu, pci *info) {
    ASK(gpu, info, 0);
    memset(info, 0, sizeof *info);
    return text(info->bus_id, sizeof info->bus_id, ADDRESS[gpu->number]);
}

/* Links */
static int linked(device gpu, unsigned link, const void *answer) {
    NEED(is_device(gpu) && answer);
    return LINKS == 0 || gpu->slice ? NOT_SUPPORTED : link < LINKS ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *is_active) {
    ENTER;
    int no = linked(gpu, link, is_active);
    if (no) return no;
    ASK(gpu, is_active, 0);
    *is_active = 1;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, unsigned link, pci *info) {
    ENTER;
    int no = linked(gpu, link, info);
    if (no) return no;
    ASK(gpu, info, 0);
    memset(info, 0, sizeof *info);
#ifdef MACHINE_V100
    return text(info->bus_id, sizeof info->bus_id, ADDRESS[PEER[gpu->number][link]]);
#else
    return text(info->bus_id, sizeof info->bus_id, "00000000:05:00.0");
#endif
}
int nvmlDeviceGetTopologyCommonAncestor(device here, device there, unsigned *level) {
    ASK(here, level, 0);
    ASK(there, level, 0);
    int apart = here->number > there->number ? here->number - there->number
                                             : there->number - here->number;
    *level = here->number / (GPUS / 2 ? GPUS / 2 : 1) != there->number / (GPUS / 2 ? GPUS / 2 : 1)
                 ? SYSTEM : apart > 1 ? NODE : HOST_BRIDGE;
    return SUCCESS;
}

/* State */
#define UNSIGNED(call, parts, is) int call(device gpu, unsigned *answer) { \
    ASK(gpu, answer, parts); *answer = (is); return SUCCESS; }
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, 0, 700000)
UNSIGNED(nvmlDeviceGetPersistenceMode, 0, 1)
UNSIGNED(nvmlDeviceGetComputeMode, 0, 0)
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, 0, 5)
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, 0, 16)
UNSIGNED(nvmlDeviceGetPowerUsage, 0, 250000 + gpu->number)
int nvmlDeviceGetTotalEnergyConsumption(device gpu, unsigned long long *answer) {
    ASK(gpu, answer, 0);
    *answer = 5000000 + 100 * ++reads;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(device gpu, unsigned *now, unsigned *pending) {
    ASK(gpu, now, 0);
    NEED(pending);
    *now = *pending = 1;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(device gpu, unsigned clock, unsigned *mhz) {
    ASK(gpu, mhz, 0);
    NEED(clock < 4);
    *mhz = clock == 2 ? 2619 : 1980;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(device gpu, unsigned clock, unsigned *mhz) {
    ASK(gpu, mhz, 0);
    NEED(clock < 4);
    *mhz = clock == 2 ? 2619 : 1400;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *celsius) {
    ASK(gpu, celsius, 0);
    NEED(sensor == 0);
    *celsius = 35 + gpu->number;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *reasons) {
    ASK(gpu, reasons, 0);
    *reasons = 0x1 | 0x4 | 0x40;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device gpu, memory *info) {
    ASK(gpu, info, 1);
    *info = (memory){80ull << 30, 79ull << 30, gpu->slice ? 1ull << 28 : 1ull << 30};
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(device gpu, utilization *rates) {
    ASK(gpu, rates, 0);
    if (SLICES) return NOT_SUPPORTED;
    *rates = (utilization){90, 40};
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device gpu, unsigned kind, unsigned counter, unsigned long long *n) {
    ASK(gpu, n, 0);
    NEED(kind < 2 && counter < 2);
    *n = kind;
    return SUCCESS;
}
/* 138, 139: data over all NVLinks in KiB; 197, 198: bytes over PCIe, the latter refused here. */
int nvmlDeviceGetFieldValues(device gpu, int count, field *values) {
    ASK(gpu, values, 0);
    NEED(count > 0);
    for (int at = 0; at < count; at++) {
        field *one = &values[at];
        one->result = NOT_SUPPORTED;
        if (LINKS && (one->id == 138 || one->id == 139) && one->scope == 0xFFFFFFFF) {
            one->result = SUCCESS;
            one->type = 3;
            one->is.ull = one->id - 135;
        } else if (one->id == 197 && LINKS == 18) {   /* 32 bits, whatever stands beside them */
            one->result = SUCCESS;
            one->type = 1;
            one->is.ull = 0xABCDull << 32 | 500;
        }
    }
    return SUCCESS;
}

/* Events */
int nvmlEventSetCreate(void **set) { ENTER; NEED(set); *set = &is_registered; return SUCCESS; }
int nvmlDeviceRegisterEvents(device gpu, unsigned long long types, void *set) {
    ASK(gpu, set, 0);
    NEED(types == 8 && set == &is_registered);
    is_registered = 1;
    return SUCCESS;
}

#ifndef MACHINE_OLD                                       /* what came after driver R418 */
int nvmlDeviceGetNumaNodeId(device gpu, int *node) {
    ASK(gpu, node, 0);
    *node = gpu->number / (GPUS / 2 ? GPUS / 2 : 1);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *pending) {
    ASK(gpu, now, 0);
    NEED(pending);
    *now = *pending = SLICES > 0;
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device part, device *gpu) {
    ENTER;
    NEED(is_device(part) && part->slice && gpu);
    *gpu = &DEVICES[part->number * (SLICES + 1)];
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device gpu, unsigned link, unsigned *type) {
    ENTER;
    int no = linked(gpu, link, type);
    if (no) return no;
    ASK(gpu, type, 0);
    *type = LINKS == 18 ? TO_SWITCH : TO_GPU;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *reasons) {
    ASK(gpu, reasons, 0);
    *reasons = 0x1 | 0x4 | 0x40;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, event *data, unsigned timeout_ms) {
    ENTER;
    NEED(set == &is_registered && data && is_registered);
    (void)timeout_ms;
#ifdef XID
    *data = (event){&DEVICES[0], 8, XID, 0, 0};
    return SUCCESS;
#else
    return TIMEOUT;
#endif
}
/* On one node with switches the fabric is complete and its cluster has no number; GB200's has. */
int nvmlDeviceGetGpuFabricInfoV(device gpu, fabric *info) {
    ENTER;
    NEED(is_device(gpu) && info);
    if (info->version != 0x02000024 && info->version != 0x03000028) return VERSION_MISMATCH;
    ASK(gpu, info, 0);
    if (LINKS != 18) return NOT_SUPPORTED;
    memset(&info->status, 0xFF, sizeof *info - offsetof(fabric, status));
    memset(info->cluster, 0, sizeof info->cluster);
#ifdef MACHINE_GB200
    memset(info->cluster, 0xAB, sizeof info->cluster);
    info->clique = 7;
#else
    info->clique = 0;
#endif
    info->status = SUCCESS;
    info->state = 3;
    return SUCCESS;
}
#endif
