#!/usr/bin/env bash
# Proves the README's commands from nothing: makes a bare Debian in a folder, clones this repository into it, and runs
# `./dev demo` and `./dev test` there as on a machine that has never seen weft.
#
#   tools/fresh_machine.sh bookworm|trixie [--worktree] [--keep] [--with FOLDER] [DEV-COMMAND...]
#
#   DEV-COMMAND   what to run, each one argument: demo, test, 'test --full', ... (default: demo test)
#   --worktree    take the files as they lie here instead of the last commit
#   --keep        leave the system in out/fresh-SUITE; otherwise it is removed at the end
#   --with FOLDER copy this folder into the system, as /root/packages
#
# Needs root and debootstrap. How this machine reaches the network (resolver, CA bundle, proxies, package index, Debian
# mirror) is copied into the new system; nothing else of it is visible there. The bare system is kept as
# out/base-SUITE.tar, packages and LibTorch are fetched anew each time.
set -euo pipefail
root=$(git -C "$(dirname "$(readlink -f "$0")")" rev-parse --show-toplevel)

die() { echo "fresh_machine: $*" >&2; exit 1; }

suite=${1:-}
case $suite in bookworm|trixie) shift ;; *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
worktree=no keep=no with=
commands=()
while [ $# -gt 0 ]; do
  case $1 in
    --worktree) worktree=yes ;;
    --keep) keep=yes ;;
    --with) with=${2:?--with FOLDER}; shift ;;
    *) commands+=("$1") ;;
  esac
  shift
done
[ ${#commands[@]} -gt 0 ] || commands=(demo test)
[ "$(id -u)" = 0 ] || die "needs root, for chroot: sudo $0 $suite"
command -v debootstrap >/dev/null || die 'needs debootstrap: apt-get install debootstrap'

# Separate mount and process namespaces: mounts and processes that follow end with this script.
if [ -z "${WEFT_FRESH_INSIDE:-}" ]; then
  WEFT_FRESH_INSIDE=1 exec unshare --mount --propagation private --pid --fork --kill-child "$0" "$suite" \
    $([ $worktree = no ] || echo --worktree) $([ $keep = no ] || echo --keep) ${with:+--with "$with"} "${commands[@]}"
fi

# The mirror that this machine itself uses, where it is a Debian; else debootstrap's own choice.
mirror=
if grep -qs '^ID=debian' /etc/os-release; then
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep -v '^ *#' | grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ' || true)
fi

guest=$root/out/fresh-$suite base=$root/out/base-$suite.tar
mkdir -p "$root/out"
if [ ! -e "$base" ]; then
  echo "== debootstrap $suite"
  making=$(mktemp -d "$root/out/making-$suite.XXXXXX")
  trap 'rm -rf --one-file-system "$making"' EXIT
  debootstrap --variant=minbase "$suite" "$making" ${mirror:+"$mirror"} >"$root/out/debootstrap-$suite.log" 2>&1 ||
    die "debootstrap failed: see out/debootstrap-$suite.log"
  tar -C "$making" -cf "$base.part" . && mv "$base.part" "$base"
  rm -rf --one-file-system "$making"
fi

rm -rf --one-file-system "$guest"
mkdir -p "$guest"
clean_up() {
  for folder in proc sys dev; do
    ! mountpoint -q "$guest/$folder" || umount --recursive --lazy "$guest/$folder"
  done
  # --one-file-system: nothing that is still mounted there is deleted.
  [ $keep = yes ] || rm -rf --one-file-system "$guest"
}
trap clean_up EXIT
tar -C "$guest" -xf "$base"
chmod 755 "$guest"  # mktemp made it for root only

# An installer, or a container's runtime, writes this; debootstrap does not.
printf '127.0.0.1\tlocalhost\n127.0.1.1\t%s\n::1\tlocalhost ip6-localhost ip6-loopback\n' "$(hostname)" >"$guest/etc/hosts"

# --- How this machine reaches the network ---
cp -L /etc/resolv.conf "$guest/etc/resolv.conf"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
  mkdir -p "$guest/etc/ssl/certs" "$guest/usr/local/share/ca-certificates"
  cp -L /etc/ssl/certs/ca-certificates.crt "$guest/etc/ssl/certs/"
  # Kept by the ca-certificates package, should it be installed later.
  cp -L /usr/local/share/ca-certificates/*.crt "$guest/usr/local/share/ca-certificates/" 2>/dev/null || true
fi
for file in $(grep -ls '^ *Acquire::' /etc/apt/apt.conf.d/* /etc/apt/apt.conf 2>/dev/null); do
  cp "$file" "$guest/etc/apt/apt.conf.d/"
done
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$guest/etc/pip.conf"
pass=()
while IFS= read -r -d '' pair; do
  case ${pair%%=*} in
    PIP_FIND_LINKS) ;;  # a folder of this machine
    PIP_*|*_proxy|*_PROXY|SSL_CERT_*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|WEFT_JOBS) pass+=("$pair") ;;
  esac
done < <(env -0)

[ -z "$with" ] || cp -r "$with" "$guest/root/packages"

# --- The repository, as a newcomer gets it ---
if [ $worktree = yes ]; then
  mkdir -p "$guest/root/weft"
  git -C "$root" ls-files -z --cached --others --exclude-standard |
    tar -C "$root" --null --files-from=- --ignore-failed-read -cf - | tar -C "$guest/root/weft" -xf -
else
  git clone --quiet --no-hardlinks "file://$root" "$guest/root/weft"
fi

mount -t proc proc "$guest/proc"
mount --rbind /sys "$guest/sys"
mount --rbind /dev "$guest/dev"
mountpoint -q "$guest/dev/shm" || { mkdir -p "$guest/dev/shm" && mount -t tmpfs tmpfs "$guest/dev/shm"; }

status=0
summary=()
for command in "${commands[@]}"; do
  log=$root/out/fresh-$suite-${command//[^a-z0-9]/-}.log
  echo "== $suite: ./dev $command (log: ${log#"$root"/})"
  started=$SECONDS result=passed
  env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
    ${pass[@]+"${pass[@]}"} chroot "$guest" /bin/bash -c "cd /root/weft && ./dev $command" 2>&1 | tee "$log" ||
    { result=FAILED; status=1; }
  summary+=("$suite: ./dev $command $result in $((SECONDS - started)) s")
  [ $result = passed ] || break
done
printf '%s\n' "${summary[@]}"
exit $status
