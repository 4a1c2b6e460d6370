/* What numoe-gpu-emu says of itself, and where it fails when told to; the conversation is
 * gpu/serve.c's. */
#include <stdio.h>
#include <string.h>

#include "base/knob.h"
#include "base/mem.h"
#include "gpu/emu/emu.h"
#include "gpu/serve.h"

struct program {
    struct emu_options options;
    struct emu *emu;
};

static numoe_status read_options(struct emu_options *o, numoe_error *err)
{
    const char *x = knob_str("NUMOE_EMU_X");
    *o = (struct emu_options){.n_thread = 1, .n_device = 1, .vram_mib = 1u << 20};
    FORWARD_IF(knob_uint("NUMOE_EMU_THREADS", 1, 1024, &o->n_thread, err));
    FORWARD_IF(knob_uint("NUMOE_EMU_DEVICES", 0, EXCHANGE_MAX_DEVICE, &o->n_device, err));
    FORWARD_IF(knob_uint("NUMOE_EMU_AT_ONCE", 0, EXCHANGE_MAX_DEVICE, &o->at_once, err));
    FORWARD_IF(knob_uint("NUMOE_EMU_VRAM", 1, 1u << 30, &o->vram_mib, err));
    if (x != NULL && strcmp(x, "f32") != 0 && strcmp(x, "bf16") != 0) {
        return status_fail(err, NUMOE_E_INPUT, "NUMOE_EMU_X: \"%s\" is neither f32 nor bf16", x);
    }
    o->x_type = x != NULL && strcmp(x, "bf16") == 0 ? EXCHANGE_X_BF16 : EXCHANGE_X_F32;
    return emu_fault_read(err);
}

static numoe_status hello(void *self, struct exchange_hello *hello, numoe_error *err)
{
    struct program *p = self;
    const struct emu_options *o = &p->options;
    FORWARD_IF(read_options(&p->options, err));
    emu_fault(EMU_START, 0, EXCHANGE_FD);
    *hello = (struct exchange_hello){
        .program = "numoe-gpu-emu " PACKAGE_VERSION,
        .driver = "the CPU",
        .n_device = o->n_device,
        .x_type = o->x_type,
        .block_tokens = 256,
        .max_tokens = 65536,
        .on_host = 1,
        .max_plan_device = o->at_once,
    };
    if (o->n_device == 0) {
        snprintf(hello->trouble, sizeof hello->trouble, "no device was asked for");
    }
    for (unsigned i = 0; i < o->n_device; i++) {
        struct exchange_device *device = &hello->device[i];
        snprintf(device->name, sizeof device->name, "emulated");
        device->number = i;
        device->os_node = UINT32_MAX;
        device->total_bytes = device->free_bytes = (uint64_t)o->vram_mib << 20;
    }
    return NUMOE_OK;
}

static void greeted(void)
{
    emu_fault(EMU_HELLO, 0, EXCHANGE_FD);
}

static numoe_status load(void *self, struct exchange_header *h, struct exchange_ready *ready,
                         uint64_t *short_bytes, numoe_error *err)
{
    struct program *p = self;
    (void)short_bytes;
    emu_fault(EMU_LOAD, 0, EXCHANGE_FD);
    FORWARD_IF(emu_load(&p->options, h, &p->emu, err));
    ready->n_device = h->n_device;
    emu_use(p->emu, ready->use);
    emu_fault(EMU_READY, 0, EXCHANGE_FD);
    return NUMOE_OK;
}

static numoe_status step(void *self, uint64_t number, numoe_error *err)
{
    struct program *p = self;
    (void)err;
    emu_fault(EMU_STEP, number, EXCHANGE_FD);
    emu_step(p->emu, number);
    return NUMOE_OK;
}

static bool beats(void)
{
    return !emu_fault_hangs();
}

int main(void)
{
    static struct program program;
    static const struct serve serve = {.program = "numoe-gpu-emu",
                                       .hello = hello,
                                       .greeted = greeted,
                                       .load = load,
                                       .step = step,
                                       .beats = beats};
    return serve_run(&serve, &program);
}
