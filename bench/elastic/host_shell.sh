# weft launch --rsh "sh host_shell.sh": runs a command on a host, which is a network namespace.
#   sh host_shell.sh HOST COMMAND
exec ip netns exec "$1" sh -c "$2"
