#!/bin/bash
# Boots a real systemd in namespaces of its own, on a throw-away overlay of this machine's files, and
# ends it again. Needs root, util-linux, systemd and a mounted cgroup2; shares the machine's network.
#
#   box.sh can                      exit 0, or the reason why it cannot
#   box.sh up DIR FOLDER            FOLDER is seen as /opt/berth inside
#   box.sh exec DIR COMMAND...
#   box.sh down DIR
set -euo pipefail

command=${1:?}
[ "$command" = can ] || dir=$(readlink -f "${2:?}")

in_box() { nsenter -t "$(cat "$dir/init.pid")" -m -p -i -u -C -- "$@"; }

child_of() { tr -d ' ' < "/proc/$1/task/$1/children" 2> /dev/null || true; }

case $command in
can)
    [ "$(id -u)" = 0 ] || { echo "not root"; exit 1; }
    for tool in unshare nsenter pivot_root setsid dpkg dpkg-deb dpkg-shlibdeps; do
        command -v "$tool" > /dev/null || { echo "no $tool"; exit 1; }
    done
    [ -x /lib/systemd/systemd ] || { echo "no systemd on this machine"; exit 1; }
    group=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
    [ -n "$group" ] || { echo "no cgroup2 is mounted"; exit 1; }
    mkdir "$group/berth-can-$$" 2> /dev/null && rmdir "$group/berth-can-$$" \
        || { echo "no control group can be made"; exit 1; }
    unshare --mount --pid --fork --uts --ipc --cgroup true 2> /dev/null \
        || { echo "no namespaces can be made"; exit 1; }
    ;;
up)
    group=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)/berth-box-$$
    mkdir "$group"
    echo "$group" > "$dir/cgroup"
    mkdir -p "$dir/mount"
    # The control group first, so that the namespace has it as its root.
    setsid bash -c 'echo $$ > "$1/cgroup.procs"; shift; exec unshare "$@"' _ "$group" \
        --mount --propagation private --pid --fork --uts --ipc --cgroup --kill-child=KILL \
        bash "$(readlink -f "$0")" inside "$dir" "${3:?}" < /dev/null > "$dir/console" 2>&1 &
    outer=$!
    for _ in $(seq 200); do
        init=$(child_of "$outer")
        [ -n "$init" ] && [ "$(cat "/proc/$init/comm" 2> /dev/null)" = systemd ] && break
        init=
        sleep 0.05
    done
    [ -n "$init" ] || { cat "$dir/console" >&2; exit 1; }
    echo "$init" > "$dir/init.pid"
    for _ in $(seq 300); do
        case $(timeout 5 bash "$0" exec "$dir" systemctl is-system-running 2> /dev/null || true) in
            running | degraded) exit 0 ;;
        esac
        sleep 0.1
    done
    echo "systemd did not come up" >&2
    exit 1
    ;;
inside)
    mount=$dir/mount
    mount -t tmpfs -o mode=755 box "$mount"
    mkdir "$mount/upper" "$mount/work" "$mount/root"
    mount -t overlay overlay \
        -o "lowerdir=/,upperdir=$mount/upper,workdir=$mount/work" "$mount/root"
    root=$mount/root
    rm -f "$root/etc/machine-id"
    : > "$root/etc/machine-id"
    : > "$root/etc/fstab"
    mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/opt/berth"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys" -o ro 2> /dev/null || mount --rbind /sys "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
    for name in null zero full random urandom tty; do
        touch "$root/dev/$name"
        mount --bind "/dev/$name" "$root/dev/$name"
    done
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for name in stdin:0 stdout:1 stderr:2; do
        ln -s "/proc/self/fd/${name#*:}" "$root/dev/${name%:*}"
    done
    touch "$root/dev/console"
    mount --bind /dev/null "$root/dev/console"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount --bind "$3" "$root/opt/berth"
    # Nothing of the machine's own services, and nothing that touches its devices.
    rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/*.requires
    for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket \
        systemd-udevd-kernel.socket systemd-modules-load.service systemd-sysctl.service \
        systemd-timesyncd.service systemd-networkd.service systemd-resolved.service \
        systemd-remount-fs.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount \
        sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount \
        sys-kernel-config.mount dev-hugepages.mount dev-mqueue.mount systemd-firstboot.service \
        systemd-hwdb-update.service systemd-logind.service getty.target console-getty.service \
        systemd-ask-password-wall.path systemd-ask-password-console.path \
        systemd-update-utmp.service systemd-update-utmp-runlevel.service \
        systemd-user-sessions.service systemd-random-seed.service ldconfig.service \
        systemd-machine-id-commit.service systemd-tpm2-setup.service \
        systemd-tpm2-setup-early.service systemd-pcrphase.service systemd-homed.service \
        modprobe@.service swap.target timers.target systemd-tmpfiles-clean.timer; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    hostname box
    mkdir "$root/run/old"
    cd "$root"
    pivot_root . run/old
    umount -l /run/old
    rmdir /run/old
    # Without it the mounts of LoadCredential= stay invisible to the service.
    mount --make-rshared /
    exec env -i container=box PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system \
        --unit=multi-user.target --show-status=false --log-target=journal \
        systemd.journald.forward_to_console=0
    ;;
exec)
    shift 2
    in_box "$@"
    ;;
down)
    init=$(cat "$dir/init.pid" 2> /dev/null || true)
    if [ -n "$init" ] && [ "$(cat "/proc/$init/comm" 2> /dev/null)" = systemd ] \
        && [ "$(awk '/^NSpid/ { print $NF }' "/proc/$init/status")" = 1 ]; then
        kill -s RTMIN+4 "$init" || true # poweroff.target
        for _ in $(seq 100); do
            [ -d "/proc/$init" ] || break
            sleep 0.1
        done
        [ ! -d "/proc/$init" ] || kill -9 "$init" || true
    fi
    group=$(cat "$dir/cgroup" 2> /dev/null || true)
    case $group in
        */berth-box-*)
            for _ in $(seq 40); do
                find "$group" -depth -type d -exec rmdir {} \; 2> /dev/null || true
                [ -d "$group" ] || break
                sleep 0.05
            done
            ;;
    esac
    ;;
*)
    echo "box.sh: no command $command" >&2
    exit 2
    ;;
esac
