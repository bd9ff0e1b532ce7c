#!/bin/sh
# A pod's container on a host of virtual_hosts.sh, for root: with a root folder whose /etc, /home,
# /root and /opt can be changed, an empty /tmp and /run, and process numbers of its own; COMMAND is
# process 1.
#
#   virtual_pod.sh FOLDER COMMAND...
#
# FOLDER/mounts has lines "SOURCE TARGET" for folders and files to mount, where FOLDER/files, which
# is copied over the root folder, or the machine has something to mount them on, or nothing has.
set -eu
if [ "$1" != inside ]; then
    exec unshare --mount --pid --fork --kill-child "$0" inside "$@"
fi
folder=$2
shift 2
root=/run/netns/root
mkdir -p $root
mount -t tmpfs -o mode=755 tmpfs $root # of this mount namespace alone
for entry in /*; do
    name=${entry#/}
    case $name in
        etc) cp -a /etc $root/ ;;
        run | proc) mkdir $root/"$name" ;;
        tmp) mkdir -m 1777 $root/tmp ;;
        home | root | opt) # as containers have them: open to their user
            mkdir $root/"$name"
            for child in "$entry"/* "$entry"/.[!.]*; do
                [ -d "$child" ] || continue
                mkdir "$root$child"
                mount --rbind "$child" "$root$child"
            done ;;
        *)
            if [ -L "$entry" ]; then cp -a "$entry" $root/; fi
            if [ -d "$entry" ] && [ ! -L "$entry" ]; then
                mkdir $root/"$name"
                mount --rbind "$entry" $root/"$name"
            fi ;;
    esac
done
mount -t proc proc $root/proc
cp -a "$folder/files/." $root/
while read -r source target; do
    if [ -d "$source" ]; then mkdir -p "$root$target"; fi
    [ -e "$root$target" ] || { mkdir -p "$(dirname "$root$target")" && touch "$root$target"; }
    mount --bind "$source" "$root$target"
done < "$folder/mounts"
exec chroot $root "$@"
