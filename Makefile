# make             build train_gpt and the tools
# make quickstart  install what is missing, make a data set, train, sample, report   (TEXT=my.txt: your own text)
# make test        install what is missing, build, run every test that needs no GPU; sweeps over layouts are sampled
# make test-long   the same with all of every sweep
# make bench       measure this trainer beside its peers
# make bench-gpu   build, check and time everything on one GPU, in under nine minutes: bench/results/h200-*.json and a table
# make asan tsan   the whole suite with the address and undefined, or the thread sanitizer
# make fuzz        every reader of foreign bytes, SECONDS_EACH=10; make fuzz-long: ten minutes each
# make lint        sizes, rooms, format, warnings as errors with gcc and clang, cppcheck; make format mends the format
# make cuda-check  registers and spills of every CUDA kernel (where nvcc is)
# make size        lines per room
# make install     programs to $(PREFIX)/bin
# make clean       remove what was built; run/ stays
#
# Variables: CC=clang, CONFIG=asan|tsan|debug|mpich (own folder build-CONFIG), WERROR=-Werror, CFLAGS, PREFIX, PEERS (of make bench)
#            MPICC=/path/to/mpicc: the MPI to build against, when it is not the mpicc of PATH; MPI=0: none; HWLOC=0: no hwloc
#            CUDA=1 or 0: kernels for GPUs in train_gpt, or none (default: where nvcc and a GPU are); NVCC=/path/to/nvcc, NVCC_FLAGS
MAKEFLAGS += -r
comma := ,
SHELL := /bin/bash
CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
# the C++ compiler of the same kind: it builds the CUDA kernels for the tests
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(if $(findstring gcc,$(CC)),$(subst gcc,g++,$(CC)),g++))
CONFIG ?= release
B := build$(if $(filter release,$(CONFIG)),,-$(CONFIG))

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla $(WERROR)
OPT_release := -O3
OPT_asan := -DGPT_DEBUG -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan := -DGPT_DEBUG -O1 -fsanitize=thread
OPT_debug := -DGPT_DEBUG -O0
OPT_mpich := $(OPT_release)
OPT_fuzz := -DGPT_DEBUG -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
CFLAGS ?=

# MPI: what its compiler wrapper would add. --showme is Open MPI's word, -show that of MPICH and its kin, whose first word is a compiler.
MPICC ?= $(if $(filter mpich,$(CONFIG)),mpicc.mpich,mpicc)
ifneq ($(MPI),0)
MPI_SAYS := $(shell { $(MPICC) --showme:compile && $(MPICC) --showme:link || $(MPICC) -show; } 2>/dev/null)
endif
MPI_CFLAGS := $(patsubst -I%,-isystem %,$(filter -I% -D%,$(MPI_SAYS)))
MPI_LIBS := $(if $(MPI_SAYS),-Wl$(comma)--as-needed $(filter -L% -l% -Wl%,$(MPI_SAYS)))
# hwloc: where it is not, files of /sys say where cores are.
ifneq ($(HWLOC),0)
HWLOC_SAYS := $(shell pkg-config --cflags --libs hwloc 2>/dev/null)
endif
HWLOC_CFLAGS := $(patsubst -I%,-isystem %,$(filter -I% -D%,$(HWLOC_SAYS)))
HWLOC_LIBS := $(filter-out -I% -D%,$(HWLOC_SAYS))
DETECT_HWLOC := parallel/detect_$(if $(HWLOC_SAYS),hwloc,hwloc_absent)
# collectives of GPUs: of what has CUDA
COLL_CUDA := parallel/coll_device.c $(wildcard parallel/coll_nccl*.c) parallel/nccl.c
COLL_MPI := $(if $(MPI_SAYS),mpi mpi_flight mpi_job,mpi_absent)

# CUDA: a minute of building that only a machine with a GPU has a use for; a node to build on may have none, and ask for it (CUDA=1).
# Kernels for sm_80, whose PTX newer devices translate, and sm_90a; the runtime is linked statically, all else is loaded when a device
# was found.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(wildcard /dev/nvidiactl /dev/dxg),1,0)
NVCC_FLAGS ?= -gencode 'arch=compute_80,code=[sm_80,compute_80]' -gencode arch=compute_90a,code=sm_90a
# what only Hopper has is compiled for nothing else
NVCC_SM90 := -gencode arch=compute_90a,code=sm_90a
WITH_CUDA := $(and $(NVCC),$(filter-out 0,$(CUDA)),$(filter release mpich,$(CONFIG)))
CUDA_LIBS = -L$(abspath $(dir $(shell readlink -f $(NVCC)))../lib64) -lcudart_static -lrt

ALL_CFLAGS := -std=c11 -D_GNU_SOURCE -g $(OPT_$(CONFIG)) -ffp-contract=off -pthread -I. -MMD -MP $(WARN) $(CFLAGS)
LDLIBS := -ljansson -lm -ldl -pthread $(MPI_LIBS) $(HWLOC_LIBS)
ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)
# CUDA sources for g++ and clang++: no exceptions and no library of C++, so that C links them. Signs: indices of threads are unsigned
# in CUDA, those of elements are not; C++ of gcc does not count that among conversions, that of clang would.
CXX_WARN := $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARN)) -Wmissing-declarations -Wno-unknown-pragmas -Wno-sign-conversion
CXX_FLAGS = -std=c++17 $(filter-out -std=c11 $(WARN),$(ALL_CFLAGS)) $(CXX_WARN) -fno-exceptions -fno-rtti -fno-threadsafe-statics

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
CUDA_ALWAYS := layers/cuda/kernels_cuda_absent.c layers/cuda/kernels_sizes.c
LIB := $(wildcard base/*.c) $(CUDA_ALWAYS) layers/cpu/kernels_cpu.c layers/cpu/rope_table.c $(SETS_FILE) $(wildcard data/*.c) \
    $(filter-out parallel/coll_mpi% parallel/detect_hwloc% $(COLL_CUDA),$(wildcard parallel/*.c)) $(COLL_MPI:%=parallel/coll_%.c) $(DETECT_HWLOC).c
TESTS := $(wildcard tests/test*.c) tests/mesh_run.c tests/theory.c
# CUDA kernels in the tests: emulated on the CPU (tests/emu/), whether or not there is a toolkit
FIBER := $(firstword $(wildcard tests/emu/fiber_$(ARCH).c) tests/emu/fiber_any.c)
CUDA_C := $(filter-out $(CUDA_ALWAYS),$(wildcard layers/cuda/*.c)) $(COLL_CUDA)
EMU := $(filter-out tests/emu/fiber_%,$(wildcard tests/emu/*.c)) $(FIBER) $(CUDA_C)
CUDA_SOURCES := $(wildcard layers/*.cu layers/cuda/*.cu)
EMU_OBJECTS = $(call obj,$(EMU)) $(CUDA_SOURCES:%.cu=$(B)/emu/%.o)
EMU_TESTS = $(patsubst %.cu,$(B)/emu/%.o,$(wildcard tests/test*.cu) tests/cuda_probes_sm90.cu)
CUDA_OBJECTS = $(call obj,$(CUDA_C)) $(CUDA_SOURCES:%.cu=$(B)/cuda/%.o)
# the benchmark of GPUs: a program of several files, with CUDA's kernels or with the emulator's
BENCH_GPU := $(wildcard tools/bench_gpu*.c)
TOOLS := $(patsubst tools/%.c,%,$(filter-out $(BENCH_GPU),$(wildcard tools/*.c)))
FAKE_NVML := $(B)/tests/fake_nvml/libnvidia-ml.so.1
PROGRAMS := train_gpt $(TOOLS)
obj = $(patsubst %.c,$(B)/%.o,$(1))

all: $(PROGRAMS:%=$(B)/%)
	@$(if $(filter release,$(CONFIG)),ln -sf $(filter-out %/bench_% %/logits %/check_debug_state,$(PROGRAMS:%=$(B)/%)) .)

$(B)/libgpt.a: $(call obj,$(LIB)) $(SETS:%=$(B)/kernels_%.o) $(B)/mpi.txt $(B)/hwloc.txt
	@rm -f $@ && ar rcs $@ $(filter %.o,$^)
TRAIN := $(wildcard train_*.c)
$(B)/train_gpt: $(call obj,$(TRAIN)) $(if $(WITH_CUDA),$(CUDA_OBJECTS)) $(B)/libgpt.a $(B)/cuda.txt
	$(CC) $(ALL_CFLAGS) -o $@ $(filter-out %.txt,$^) $(if $(WITH_CUDA),$(CUDA_LIBS)) $(LDLIBS)
$(B)/cuda/train_gpt: $(call obj,$(TRAIN)) $(CUDA_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
# the same tests where a device runs CUDA's kernels: those called cuda_... are for it
$(B)/cuda/run_tests: $(call obj,$(TESTS) tests/device.c) $(CUDA_OBJECTS) $(B)/libgpt.a | $(B)/cuda/train_gpt
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
# what instructions of capability 9.0 do, a line each (tests/cuda_probes.h)
$(B)/cuda/probes: $(B)/cuda/tests/cuda_probes_main_sm90.o $(B)/cuda/tests/cuda_probes_sm90.o $(CUDA_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
$(B)/cuda/bench_gpu: $(call obj,$(BENCH_GPU)) $(CUDA_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(CUDA_LIBS) $(LDLIBS)
# for the tests: its GPU is the emulator's
$(B)/train_gpt_emu: $(call obj,$(TRAIN)) $(EMU_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(B)/bench_gpu_emu: $(call obj,$(BENCH_GPU)) $(EMU_OBJECTS) $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
$(TOOLS:%=$(B)/%): $(B)/%: $(B)/tools/%.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
# the tests run the programs of their own build
$(B)/run_tests: $(call obj,$(TESTS)) $(EMU_OBJECTS) $(EMU_TESTS) $(B)/libgpt.a | $(PROGRAMS:%=$(B)/%) $(B)/train_gpt_emu $(B)/bench_gpu_emu $(B)/ranks_job $(FAKE_NVML)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)
# loaded as the driver's library is: no sanitizer in it
$(FAKE_NVML): tests/fake_nvml.c
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARN) -shared -fPIC -o $@ $<
$(B)/ranks_job: $(B)/tests/ranks_job.o $(B)/libgpt.a
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
# kernels change stacks a million times a second: ThreadSanitizer, told of each change, would take a hundred times as long
$(EMU_OBJECTS) $(EMU_TESTS): ALL_CFLAGS := $(filter-out -fsanitize=thread,$(ALL_CFLAGS))
$(B)/emu/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CXX) -Itests/emu/include $(CXX_FLAGS) -x c++ -c -o $@ $<
# what ptxas says of registers and spills lies beside the object
$(B)/cuda/%.o: %.cu Makefile $(B)/nvcc.txt
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -lineinfo -I. -ccbin $(CXX) -Xcompiler -g,-Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
	    $(if $(findstring _sm90,$<),$(NVCC_SM90),$(NVCC_FLAGS)) -Xptxas -v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$(@:.o=.log) 2>&1 || { cat $(@:.o=.log); exit 1; }

# with another MPI than last time, what calls it is built again; with or without hwloc, the library; with or without CUDA, the trainer
$(COLL_MPI:%=$(B)/parallel/coll_%.o): ALL_CFLAGS += $(MPI_CFLAGS)
$(COLL_MPI:%=$(B)/parallel/coll_%.o): $(B)/mpi.txt
$(B)/$(DETECT_HWLOC).o: ALL_CFLAGS += $(HWLOC_CFLAGS)
$(B)/mpi.txt: SAYS := $(MPI_SAYS)
$(B)/hwloc.txt: SAYS := $(HWLOC_SAYS)
$(B)/cuda.txt: SAYS := $(WITH_CUDA)
$(B)/nvcc.txt: SAYS := $(NVCC) $(NVCC_FLAGS)
$(B)/mpi.txt $(B)/hwloc.txt $(B)/cuda.txt $(B)/nvcc.txt: always
	@mkdir -p $(@D); echo "$(SAYS)" | cmp -s - $@ || echo "$(SAYS)" >$@

# the commit is part of every run record
COMMIT := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(B)/base/version.o: ALL_CFLAGS += -DCOMMIT='"$(COMMIT)"'
$(B)/base/version.o: $(wildcard $(shell git rev-parse --git-path logs/HEAD 2>/dev/null))

# a fuzzer is one file tests/fuzz/fuzz_NAME.c; clang links them (CONFIG=fuzz CC=clang)
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
$(FUZZERS:%=$(B)/%): $(B)/%: $(B)/tests/fuzz/%.o $(B)/libgpt.a
	$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)
fuzzers: $(FUZZERS:%=$(B)/%)

help:
	@sed -n '/^#/!q; s/^# \?//p' Makefile
quickstart:
	@TEXT="$(TEXT)" tools/quickstart.sh
test:
	@tools/setup.sh test
	@$(MAKE) -s -j$$(nproc) all build/run_tests
	@tools/test.sh
test-long:
	@TEST_LONG=1 $(MAKE) test
asan tsan:
	@tools/setup.sh build
	@$(MAKE) -s -j$$(nproc) CONFIG=$@ build-$@/run_tests
	TEST_LONG=1 build-$@/run_tests
SECONDS_EACH ?= 10
fuzz-long: SECONDS_EACH := 600
fuzz fuzz-long:
	@tools/setup.sh test
	@$(MAKE) -s -j$$(nproc) CONFIG=fuzz CC=clang fuzzers
	@tools/fuzz.sh $(SECONDS_EACH)
# PEERS='--python /path/to/python --llmc "command with {B} {T}"' measures others beside it (python3 tools/bench.py --help).
bench: $(B)/train_gpt
	python3 tools/bench.py $(PEERS)
	python3 tools/bench_table.py --page README.md
# everything on one GPU, in under nine minutes; GPU_BENCH='--out FOLDER --text FILE', or --rehearse: with the emulated one, at tiny sizes
bench-gpu:
	python3 tools/bench_gpu.py $(GPU_BENCH)
lint:
	@tools/setup.sh test
	@tools/lint.sh
format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
# with nvcc alone: registers and spills of every kernel, for two architectures; a trainer with CUDA, which starts where CUDA is not
NCCL_HEADER = $(wildcard $(dir $(NVCC))../include/nccl.h)
cuda-check: $(if $(NVCC),$(B)/cuda/train_gpt $(B)/cuda/run_tests $(B)/cuda/bench_gpu $(B)/cuda/probes $(patsubst %.cu,$(B)/cuda/%.o,$(wildcard tests/cuda_*.cu)) $(if $(NCCL_HEADER),$(B)/cuda/tests/nccl_headers.o))
	@$(if $(NVCC),tools/cuda_check.sh $(B)/cuda,echo "cuda-check: no nvcc here")
size:
	@for room in . base layers layers/cpu layers/cuda data parallel tools tests tests/emu; do \
	    printf '%-12s %6d lines\n' $$room $$(cat $$room/*.[ch] $$room/*.cu $$room/*.cuh 2>/dev/null | wc -l); done
PREFIX ?= /usr/local
install: all
	install -d $(DESTDIR)$(PREFIX)/bin && install $(PROGRAMS:%=$(B)/%) $(DESTDIR)$(PREFIX)/bin
clean:
	rm -rf build build-* $(PROGRAMS)

.PHONY: all always help quickstart test test-long bench bench-gpu asan tsan fuzz fuzz-long fuzzers lint format cuda-check size install clean
-include $(shell find $(B) -name '*.d' 2>/dev/null)
