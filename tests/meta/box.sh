#!/usr/bin/env bash
# A container of our own for scripts/droplet: this host's root under an overlay, large disks, no docker and no init.
#
#   unshare --mount --pid --fork --kill-child tests/meta/box.sh WORK COMMAND...
#
# Whatever the command starts or installs is gone when it ends; WORK is an empty folder.
set -euo pipefail

work=$1
shift
mkdir "$work/layer" "$work/root"
mount -t tmpfs -o size=6g tmpfs "$work/layer"
mkdir "$work/layer/upper" "$work/layer/work"
mount -t overlay -o "lowerdir=/,upperdir=$work/layer/upper,workdir=$work/layer/work" overlay "$work/root"
cd "$work/root"
mount -t proc proc proc
for folder in sys dev; do mount --rbind /$folder $folder; done
mkdir -p var/lib/docker large
mount -t tmpfs tmpfs run
mount -t tmpfs -o size=100g tmpfs var/lib/docker
mount -t tmpfs -o size=200g tmpfs large
# A fresh host: no docker, nothing started by apt, and no rules in a network that is this host's.
printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d
chmod +x usr/sbin/policy-rc.d
rm -f usr/local/bin/docker*
DEBIAN_FRONTEND=noninteractive chroot . apt-get remove -q -y docker.io
mkdir -p etc/docker
echo '{"iptables": false, "ip6tables": false, "bridge": "none"}' >etc/docker/daemon.json
exec chroot . "$@"
