#!/usr/bin/env bash
# Build the guest's kernel from kernel.config, into the cache in which kernel.py looks for it.
#
#   build-kernel.sh                 from linux-source-7.2, installed or downloaded by apt (Debian trixie-backports and later)
#   build-kernel.sh SOURCE          from a linux-source-*.deb, or a tarball of kernel.org's or of Debian's
#
# Takes some five minutes on two cores, and 2 GB of disk while it works. Kernels before 7.0 do not do: user-mode Linux
# panics on processors with large vector registers, and lacks options that kernel.config asks for.
set -euo pipefail
export LC_ALL=C

series=7.2
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hearth
kernel=$cache/uml-$(sha256sum "$here/kernel.config" | cut -c1-16)

refuse() { printf 'build-kernel: %s\n' "$@" >&2; exit 1; }

find_source() {
    local installed=("/usr/src/linux-source-$series".tar.*)
    if [ -f "${installed[0]}" ]; then
        source=${installed[0]}
    elif command -v apt-get >/dev/null && apt-cache show "linux-source-$series" >/dev/null 2>&1; then
        (cd "$work" && apt-get download "linux-source-$series")
        source=$(echo "$work"/linux-source-*.deb)
    else
        refuse "there is no kernel source here, and apt knows no linux-source-$series. Either" \
            "  echo 'deb http://deb.debian.org/debian trixie-backports main' >/etc/apt/sources.list.d/backports.list && apt-get update" \
            "or give a tarball: $0 linux-$series.tar.xz (https://cdn.kernel.org/pub/linux/kernel/v7.x/)"
    fi
}

unpack() {
    case $1 in
        *.deb)
            dpkg-deb --fsys-tarfile "$1" | tar -C "$work" -x --wildcards './usr/src/linux-source-*.tar.*'
            unpack "$(echo "$work"/usr/src/linux-source-*.tar.*)" ;;
        *.tar | *.tar.*) mkdir "$work/source" && tar -C "$work/source" -xf "$1" --strip-components=1 ;;
        *) refuse "$1 is neither a .deb nor a tarball" ;;
    esac
}

[ "$(uname -m)" = x86_64 ] || refuse "user-mode Linux builds and runs on x86-64 only; this is $(uname -m)"
[ $# -le 1 ] || refuse "usage: $0 [SOURCE]"
if [ -x "$kernel/linux" ]; then
    echo "build-kernel: $kernel has been built; remove it to build it again"
    exit
fi
lacking=()
for tool in gcc make flex bison bc xz; do
    command -v "$tool" >/dev/null || lacking+=("${tool/#xz/xz-utils}")
done
[ -f /usr/include/stdio.h ] || lacking+=(libc6-dev)
[ ${#lacking[@]} -eq 0 ] || refuse "the build needs more: apt-get install --no-install-recommends ${lacking[*]}"
source=$(realpath -e "${1:-/}")

# In the cache rather than in a temporary folder, which may be small, or mounted noexec.
mkdir -p "$cache"
work=$(mktemp -d "$cache/building-XXXXXX")
trap 'rm -rf "$work"' EXIT
[ $# -eq 1 ] || find_source
unpack "$source"

cd "$work/source"
# The virtio bus calls a driver's remove function also where there is none, as in spi-virtio: the guest would panic when such
# a device goes, and at its power-off. A source that has been mended stays as it is.
if ! grep -q 'if (drv->remove)' drivers/virtio/virtio.c; then
    sed -i 's/^\tdrv->remove(dev);/\tif (drv->remove)\n\t\tdrv->remove(dev);\n\telse\n\t\tvirtio_reset_device(dev);/' drivers/virtio/virtio.c
    grep -q 'if (drv->remove)' drivers/virtio/virtio.c || refuse "drivers/virtio/virtio.c is not as it was when this script was written"
fi
export ARCH=um KBUILD_BUILD_USER=hearth KBUILD_BUILD_HOST=hearth
make -s allnoconfig KCONFIG_ALLCONFIG="$here/kernel.config"
if grep '^CONFIG_' "$here/kernel.config" | grep -v '=n$' | grep -vxFf .config; then
    refuse "$(make -s kernelversion) did not take the options above"
fi
make -s -j"$(nproc)" linux modules
mkdir -p "$work/done/modules"
cp linux "$work/done/"
cp drivers/i2c/i2c-stub.ko drivers/gpio/gpio-mockup.ko "$work/done/modules/"
strip --strip-debug "$work/done/linux" "$work/done/modules/"*.ko
mv "$work/done" "$kernel"
echo "build-kernel: built $kernel"
