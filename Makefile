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

# layers/*.c is compiled once per instruction set; each set becomes one object that shows only kernels_cpu_<set>.
ifeq ($(ARCH),x86_64)
SETS := portable avx2 avx512 avx512_bf16
SETS_FILE := layers/cpu/sets_x86_64.c
else
SETS := portable
SETS_FILE := layers/cpu/sets_any.c
endif
FLAGS_avx2 := -mavx2 -mfma
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512
FLAGS_avx512_bf16 := $(FLAGS_avx512) -mavx512bf16
LAYERS := $(wildcard layers/*.c)
LIB := $(wildcard base/*.c) layers/cpu/kernels_cpu.c layers/cpu/rope_table.c $(SETS_FILE) $(wildcard data/*.c) $(wildcard parallel/*.c)
TESTS := $(wildcard tests/test*.c)
TOOLS := $(patsubst tools/%.c,%,$(wildcard tools/*.c))
PROGRAMS := train_gpt $(TOOLS)
obj = $(patsubst %.c,$(B)/%.o,$(1))

all: $(PROGRAMS:%=$(B)/%)
	@$(if $(filter release,$(CONFIG)),ln -sf $(PROGRAMS:%=$(B)/%) .)

$(B)/libgpt.a: $(call obj,$(LIB)) $(SETS:%=$(B)/kernels_%.o)
	@rm -f $@ && ar rcs $@ $^
$(B)/train_gpt: $(B)/train_gpt.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(TOOLS:%=$(B)/%): $(B)/%: $(B)/tools/%.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
# the tests run the tools of their own build
$(B)/run_tests: $(call obj,$(TESTS)) $(B)/libgpt.a | $(TOOLS:%=$(B)/%)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

define set_rules
$(B)/$(1)/layers/%.o: layers/%.c Makefile
	@mkdir -p $$(@D)
	$$(CC) $$(ALL_CFLAGS) $$(FLAGS_$(1)) -c -o $$@ $$<
$(B)/kernels_$(1).o: $(LAYERS:%.c=$(B)/$(1)/%.o)
	@ld -r -o $$@ $$^
	@objcopy --redefine-sym kernels_table=kernels_cpu_$(1) --keep-global-symbol=kernels_cpu_$(1) $$@
endef
$(foreach s,$(SETS),$(eval $(call set_rules,$(s))))
$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c -o $@ $<

# the commit is part of every run record
COMMIT := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(B)/base/version.o: CFLAGS += -DCOMMIT='"$(COMMIT)"'
$(B)/base/version.o: $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))

clean:
	rm -rf build build-* $(PROGRAMS)

.PHONY: all clean
-include $(shell find $(B) -name '*.d' 2>/dev/null)
