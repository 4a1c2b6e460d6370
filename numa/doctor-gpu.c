/* Owns what can be said of GPUs without a GPU library: NVIDIA's, as the PCI bus shows them. A link
 * that rests is slow in many machines, so only its width is complained of.
 */
#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "numa/doctor.h"

#define PCI         "/sys/bus/pci/devices"
#define NVIDIA      0x10deu
#define DISPLAY     0x03u /* class of display controllers, without or with a display */
#define SPEED_CHARS 16

static char *read_slot(const char *root, const char *slot, const char *name)
{
    char path[320];
    snprintf(path, sizeof path, PCI "/%s/%s", slot, name);
    return world_read(root, path);
}

/* A number such as "0x10de" or "16"; -1: not known. */
static long read_number(const char *root, const char *slot, const char *name)
{
    char *text = read_slot(root, slot, name), *end = text;
    long value = text != NULL ? strtol(text, &end, 0) : -1;
    value = end == text ? -1 : value;
    mem_free(text);
    return value;
}

/* "32.0 GT/s PCIe" is 32.0; "" where it is not known. */
static void read_speed(const char *root, const char *slot, const char *name, char *speed)
{
    char *text = read_slot(root, slot, name);
    const size_t n = text != NULL ? strspn(text, "0123456789.") : 0;
    snprintf(speed, SPEED_CHARS, "%.*s", (int)MIN(n, (size_t)SPEED_CHARS - 1),
             text != NULL ? text : "");
    mem_free(text);
}

static bool is_gpu(const char *root, const char *slot)
{
    return slot[0] != '.' && read_number(root, slot, "vendor") == NVIDIA &&
           read_number(root, slot, "class") >> 16 == DISPLAY;
}

/* The line DRIVER= of uevent; "" where there is none. */
static void read_driver(const char *root, const char *slot, char *driver, size_t cap)
{
    char *text = read_slot(root, slot, "uevent");
    const char *line = text != NULL ? strstr(text, "DRIVER=") : NULL;
    const char *name = line != NULL ? line + strlen("DRIVER=") : "";
    snprintf(driver, cap, "%.*s", (int)strcspn(name, "\n"), name);
    mem_free(text);
}

static void add(struct doctor_finding *f, const char *fmt, ...) NUMOE_PRINTF(2, 3);
static void add(struct doctor_finding *f, const char *fmt, ...)
{
    const size_t len = strlen(f->found);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->found + len, sizeof f->found - len, fmt, ap);
    va_end(ap);
}

static void describe_link(const char *root, const char *slot, struct doctor_finding *f)
{
    char speed[SPEED_CHARS], most[SPEED_CHARS];
    const long width = read_number(root, slot, "current_link_width");
    const long widest = read_number(root, slot, "max_link_width");
    read_speed(root, slot, "current_link_speed", speed);
    read_speed(root, slot, "max_link_speed", most);
    if (width <= 0 || widest <= 0) {
        add(f, ", PCIe link not known");
        return;
    }
    add(f, ", PCIe x%ld of x%ld", width, widest);
    if (speed[0] != '\0' && most[0] != '\0') {
        add(f, ", %s of %s GT/s now", speed, most);
    }
    if (width < widest && f->level == DOCTOR_OK) {
        f->level = DOCTOR_NOTE;
        f->cost = "what goes to the GPU and back, weights above all, takes longer";
        f->mend = "a slot with all lanes; sudo lspci -vv -d 10de: | grep -E 'LnkCap|LnkSta'";
    }
}

static void describe(const char *root, const char *slot, struct doctor_finding *f)
{
    char driver[48];
    const long node = read_number(root, slot, "numa_node");
    add(f, "NVIDIA %04lx at %.32s", read_number(root, slot, "device"), slot);
    if (node >= 0) {
        add(f, ", node %ld", node);
    } else {
        add(f, ", node not known");
    }
    read_driver(root, slot, driver, sizeof driver);
    if (strcmp(driver, "nvidia") == 0) {
        char *version = world_read(root, "/sys/module/nvidia/version");
        add(f, ", driver %.32s", version != NULL ? version : "nvidia");
        mem_free(version);
    } else {
        add(f, ", %s%s", driver[0] != '\0' ? "with the driver " : "without a driver", driver);
        f->level = DOCTOR_NOTE;
        f->cost = "the GPU cannot be used";
        f->mend = "install NVIDIA's driver; sudo modprobe nvidia";
    }
    describe_link(root, slot, f);
}

void doctor_look_for_gpus(const char *root, struct doctor_report *report)
{
    char path[256];
    struct dirent **entry = NULL;
    snprintf(path, sizeof path, "%s" PCI, root);
    const int n = scandir(path, &entry, NULL, alphasort);
    struct doctor_finding *f;
    for (int i = 0; i < n; i++) {
        if (is_gpu(root, entry[i]->d_name) && (f = doctor_next(report, "GPU")) != NULL) {
            describe(root, entry[i]->d_name, f);
            report->n_gpu++;
        }
        free(entry[i]);
    }
    free(entry);
    if (report->n_gpu == 0 && (f = doctor_next(report, "GPU")) != NULL) {
        add(f, "no NVIDIA GPU");
    }
}
