# make             build train_gpt and the tools
# make quickstart  install what is missing, make a data set, train, sample, report   (TEXT=my.txt for your own text)
# make test        install what is missing, build and run every test that needs no GPU
# make help        all targets
MAKEFLAGS += -r
SHELL := /bin/bash
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
CONFIG ?= release
B := build$(if $(filter release,$(CONFIG)),,-$(CONFIG))

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla $(WERROR)
OPT_release := -O3
OPT_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan := -O1 -fsanitize=thread
OPT_debug := -O0
CFLAGS ?=
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE -g $(OPT_$(CONFIG)) -ffp-contract=off -pthread -I. -MMD -MP $(WARN) $(CFLAGS)
LDLIBS := -ljansson -lm -pthread
ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)

# Kernels of other processors are neighbouring files; product_arch_none.c has none.
LAYERS := $(filter-out %_avx512.c %_avx512_bf16.c %_avx2.c %_arch_none.c %_arch_x86.c,$(wildcard layers/*.c))
ifeq ($(ARCH),x86_64)
LAYERS += $(wildcard layers/*_avx512.c layers/*_avx512_bf16.c layers/*_avx2.c layers/*_arch_x86.c)
else
LAYERS += $(wildcard layers/*_arch_none.c)
endif
LIB := $(wildcard base/*.c) $(LAYERS) $(wildcard data/*.c) $(wildcard parallel/*.c)
TESTS := $(wildcard tests/test*.c)
TOOLS := $(patsubst tools/%.c,%,$(wildcard tools/*.c))
PROGRAMS := train_gpt $(TOOLS)
obj = $(patsubst %.c,$(B)/%.o,$(1))

all: $(PROGRAMS:%=$(B)/%)
	@$(if $(filter release,$(CONFIG)),ln -sf $(PROGRAMS:%=$(B)/%) .)

$(B)/libgpt.a: $(call obj,$(LIB))
	@rm -f $@ && ar rcs $@ $^
$(B)/train_gpt: $(B)/train_gpt.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(TOOLS:%=$(B)/%): $(B)/%: $(B)/tools/%.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(B)/run_tests: $(call obj,$(TESTS)) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(B)/%_avx512.o: ARCHFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512
$(B)/%_avx512_bf16.o: ARCHFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mprefer-vector-width=512
$(B)/%_avx2.o: ARCHFLAGS := -mavx2 -mfma -mf16c
$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ARCHFLAGS) -c -o $@ $<

clean:
	rm -rf build build-* $(PROGRAMS)

.PHONY: all clean
-include $(shell find $(B) -name '*.d' 2>/dev/null)
