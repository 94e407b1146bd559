#!/bin/sh
# fake_python.sh: replaces python3 with PyTorch in the rehearsal of tools/bench_gpu.py. It prints
# what tools/bench_torch.py would print. FAKE_PYTHON=silent: PyTorch is found but its
# import fails. FAKE_PYTHON=dumb: the interpreter itself fails.
[ "$FAKE_PYTHON" = dumb ] && echo "no such interpreter" && exit 1
case "$*" in
*find_spec*) echo "9.8.7+fake" ;;
*bench_torch.py*) [ "$FAKE_PYTHON" = silent ] && echo "ImportError: libfake.so" && exit 1 ;;
esac
case "$*" in
*--attention*)
    echo "a warning of PyTorch's"
    echo '[{"backend": "cudnn", "name": "forward", "D": 64, "S": 8, "B": 2, "H": 1,
 "us": 2.0, "tflops": 1e-9},
 {"backend": "flash", "name": "forward", "D": 64, "S": 8, "B": 2, "H": 1,
 "us": 4.0, "tflops": 5e-10},
 {"backend": "cudnn", "D": 64, "S": 16, "refused": "of this shape"}]' | tr '\n' ' '
    ;;
*bench_torch.py*)
    echo '{"ms": [3.0, 4.0, 5.0], "loss": 5.5, "torch": "9.8.7+fake", "cuda": "13.0",
 "cudnn": 91002, "mode": "compile", "dtype": "bf16",
 "warmup_s": 1.5, "sdpa": "cudnn", "compiled": "whole"}' | tr '\n' ' '
    ;;
esac
