#!/bin/bash
# setup.sh [PROFILE]: installs the missing packages of a profile.
#
#   build       compiler, make, libjansson                          (default)
#   quickstart  build, and the text of the King James Bible
#   test        build, g++, clang with its sanitizers and fuzzer, clang-format, cppcheck; Open MPI
#               and iproute2, without which the tests of several processes and of an emulated
#               cluster are skipped
#   aarch64     build, a cross compiler for aarch64 and qemu-user
#   bench       build, the peers of the benchmark: OpenBLAS, oneDNN, python3
#
# Debian and Ubuntu: by apt-get, as root or through sudo. Elsewhere it prints what to install.
set -u -o pipefail
profile=${1:-build}

# program or file | Debian, Ubuntu | Fedora | Arch | macOS (Homebrew)
build='command gcc|gcc libc6-dev|gcc|gcc|gcc
command make|make|make|make|make
command objcopy|binutils|binutils|binutils|binutils
header jansson.h|libjansson-dev|jansson-devel|jansson|jansson'
quickstart='optional bible|bible-kjv|-|-|-'
test="command g++|g++|gcc-c++|gcc|gcc
command clang|clang|clang|clang|llvm
command clang-format|clang-format|clang-tools-extra|clang|clang-format
command cppcheck|cppcheck|cppcheck|cppcheck|cppcheck
command git|git|git|git|git
command pgrep|procps|procps-ng|procps-ng|-
fuzzer libFuzzer|libclang-rt-dev|compiler-rt|compiler-rt|llvm
optional mpicc|openmpi-bin libopenmpi-dev|openmpi-devel|openmpi|open-mpi
optional tc|iproute2|iproute-tc|iproute2|-
optional iptables|iptables libnetfilter-queue-dev|iptables libnetfilter_queue-devel|iptables \
libnetfilter_queue|-"
of_arm=aarch64-linux-gnu
aarch64="command $of_arm-gcc|gcc-$of_arm|gcc-$of_arm|$of_arm-gcc|-
command $of_arm-g++|g++-$of_arm|gcc-c++-$of_arm|$of_arm-gcc|-
command qemu-aarch64|qemu-user|qemu-user|qemu-user|-"
bench='header cblas.h|libopenblas-dev|openblas-devel|openblas|openblas
header dnnl.h|libdnnl-dev|onednn-devel|onednn|onednn
command python3|python3|python3|python|python'

case $profile in
build) needs=$build ;;
quickstart | test | aarch64 | bench) needs=$build$'\n'${!profile} ;;
*) echo "setup.sh: no profile is called $profile: build, quickstart, test, aarch64 or bench" >&2; \
    exit 2 ;;
esac

is_there() {
    case $1 in
    command) command -v "$2" >/dev/null ;;
    optional) command -v "$2" >/dev/null || [ -x "/usr/games/$2" ] ;;
    header) echo "#include <$2>" | gcc -E - -I/usr/include/openblas \
        -I/usr/include/x86_64-linux-gnu/openblas-pthread >/dev/null 2>&1 ;;
    fuzzer) echo 'int LLVMFuzzerTestOneInput(const char *p, long n){return !p || n;}' |
        clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null ;;
    esac
}

# Sets: missing (required), wanted (optional, with a fallback), and the packages of both for one
# system.
look() {
    missing= wanted= packages=
    while IFS='|' read -r what debian fedora arch mac; do
        # shellcheck disable=SC2086
        is_there $what && continue
        case $what in optional*) wanted+=" ${what#* }" ;; *) missing+=" ${what#* }" ;; esac
        case $1 in debian) p=$debian ;; fedora) p=$fedora ;; arch) p=$arch ;; mac) p=$mac ;; esac
        [ "$p" = - ] || packages+=" $p"
    done <<<"$needs"
}

system=other
if command -v apt-get >/dev/null; then system=debian
elif command -v dnf >/dev/null; then system=fedora
elif command -v pacman >/dev/null; then system=arch
elif [ "$(uname)" = Darwin ]; then system=mac
fi
look ${system/other/debian}
[ -n "$missing$wanted" ] || exit 0

case $system in
debian) ;;
fedora) how="dnf install$packages" ;;
arch) how="pacman -S$packages" ;;
mac) how="brew install$packages   (macOS is untested; a Linux container is the safer way)" ;;
other) how="the packages that Debian calls$packages" ;;
esac
if [ $system != debian ]; then
    [ -n "$missing" ] || exit 0
    echo "setup.sh: missing:$missing; please install: $how" >&2
    exit 1
fi

root=
if [ "$(id -u)" != 0 ]; then
    root=sudo
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
        [ -n "$missing" ] || exit 0
        echo "setup.sh: missing:$missing; please install as root: apt-get install$packages" >&2
        exit 1
    fi
fi
log=$(mktemp) || exit 1 # mktemp has printed the reason
trap 'rm -f "$log"' EXIT
install_packages() {
    # shellcheck disable=SC2086
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        "$@" >>"$log" 2>&1
}
echo "setup.sh: installing$packages"
# In a fresh container, which has no package lists, and with old lists, which name versions that the
# mirror no longer has, this fails: then the lists are updated.
# shellcheck disable=SC2086
if ! install_packages $packages; then
    $root apt-get update -q >>"$log" 2>&1
    # Packages are installed one by one, so that one that this release lacks does not prevent the
    # others.
    for p in $packages; do install_packages "$p"; done
fi
look debian
[ -z "$missing" ] && exit 0
tail -15 "$log" >&2
echo "setup.sh: still missing:$missing; see the lines above, or install by hand:$packages" >&2
exit 1
