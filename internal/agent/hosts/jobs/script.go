package jobs

// script is what a shell on a remote host runs: sh -c script carrel-job script VERB ID … Its verbs:
//
//	begin ID SECONDS ARGV…   makes the job's directory, starts the supervisor, and returns once the command runs
//	state ID                 one line: running, ended CODE WHY TIME, lost, or missing
//	output ID STREAM FROM    one line with the offset of what follows, and up to 256 KiB of the stream
//	stop ID                  has the job ended, and says its state
//	remove ID                removes what is there of it
//
// A job is a directory below ~/.local/state/carrel/remote-jobs, so that this machine can be a remote host of its own:
//
//	supervisor    PID START BOOT of the supervisor: it is known again by the time of its start and the machine's
//	leader        PID START of the command, which leads a session and a process group of its own
//	out, err      FIFOs from the command to what bounds its output
//	stdout.N …    as on this machine, each of 256 KiB at most; dd writes them, which takes no byte more than it keeps and holds
//	              none back
//	stop          there once the job is to end
//	end           CODE WHY TIME; WHY is exit, stopped or timeout
//
// A process that nobody has waited for (Z) has ended. What the command starts has CARREL_JOB in its environment, by which it
// is found where it left the process group. What is left of the output is read to its end, for at most 5 seconds if somebody
// holds it open. Within a second the supervisor sees that it is to stop or that its time is over.
const script = `umask 077; LC_ALL=C; export LC_ALL
self=$1; verb=$2; id=$3; shift 3
base=$HOME/.local/state/carrel/remote-jobs; d=$base/$id
fail() { echo "$*" >&2; exit 1; }
began() { set -- $(cat "/proc/$1/stat" 2>/dev/null | sed 's/^.*) //'); [ "$1" = Z ] || echo "${20}"; }
boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null; }
marked() { grep -ls "CARREL_JOB=$id" /proc/[0-9]*/environ 2>/dev/null | sed 's|^/proc/||; s|/environ$||'; }
signal() { kill -s "$1" -- "-$c" 2>/dev/null; for p in $(marked); do kill -s "$1" "$p" 2>/dev/null; done; }
there() { kill -s 0 -- "-$c" 2>/dev/null || [ -n "$(marked)" ]; }
ends() {
 there || return 0
 signal TERM; signal CONT
 i=0; while [ $i -lt 5 ] && there; do sleep 1; i=$((i+1)); done
 i=0; while [ $i -lt 5 ] && there; do signal KILL; sleep 1; i=$((i+1)); done
}
supervised() {
 read -r p s b <"$d/supervisor" 2>/dev/null || return 1
 kill -s 0 "$p" 2>/dev/null && [ "$(began "$p") $(boot)" = "$s $b" ]
}
state() {
 [ -d "$d" ] && [ ! -L "$d" ] || { echo missing; return; }
 if [ ! -e "$d/end" ] && supervised; then echo running; return; fi
 if [ -e "$d/end" ]; then echo "ended $(cat "$d/end")"; else echo lost; fi
}
keep() {
 at=0; old=; older=
 while :; do
  dd bs=256 count=1024 of="$d/$1.$at" 2>/dev/null || { cat >/dev/null; return; }
  len=$(($(wc -c <"$d/$1.$at")))
  [ $len -gt 0 ] || { rm -f "$d/$1.$at"; return; }
  if [ $at -gt 0 ]; then [ -z "$older" ] || rm -f "$d/$1.$older"; older=$old; old=$at; fi
  at=$((at+len))
 done
}
case $verb in
begin)
 command -v setsid >/dev/null 2>&1 || fail "there is no program setsid; install util-linux"
 mkdir -p "$base" || exit 1
 [ ! -L "$base" ] || fail "$base is a symbolic link; remove it"
 chmod 700 "$base" && mkdir "$d" && mkfifo "$d/out" "$d/err" || exit 1
 find "$base" -name end -mtime +30 2>/dev/null | while read -r e; do rm -rf "${e%/end}"; done
 setsid /bin/sh -c "$self" carrel-job "$self" supervise "$id" "$@" </dev/null >/dev/null 2>&1 &
 i=0
 while [ ! -e "$d/begun" ]; do
  [ $i -lt 20 ] || fail "its supervisor did not begin within 20s"
  sleep 0.1 2>/dev/null || sleep 1
  i=$((i+1))
 done ;;
supervise)
 trap '' HUP INT QUIT
 limit=$1; shift
 echo "$$ $(began $$) $(boot)" >"$d/supervisor.new" && mv "$d/supervisor.new" "$d/supervisor" || exit 1
 keep stdout <"$d/out" & k1=$!
 keep stderr <"$d/err" & k2=$!
 trap - HUP INT QUIT
 CARREL_JOB=$id setsid "$@" </dev/null >"$d/out" 2>"$d/err" &
 c=$!
 trap '' HUP INT QUIT
 until=$(($(date +%s) + limit))
 echo "$c $(began $c)" >"$d/leader"
 echo >"$d/begun"
 (
  while [ ! -e "$d/stop" ]; do
   [ "$(date +%s)" -lt $until ] || { echo timeout >"$d/why"; ends; exit; }
   sleep 1
  done
  echo stopped >"$d/why"; ends
 ) & w=$!
 wait $c; code=$?
 if [ -e "$d/why" ]; then wait $w; else kill $w 2>/dev/null; fi
 why=$(cat "$d/why" 2>/dev/null) || why=exit
 ends
 (sleep 5; kill $k1 $k2 2>/dev/null) & w=$!
 wait $k1; wait $k2
 kill $w 2>/dev/null
 echo "$code $why $(date +%s)" >"$d/end.new" && mv "$d/end.new" "$d/end" ;;
state) state ;;
output)
 [ -d "$d" ] && [ ! -L "$d" ] || fail "there is no such job on the host"
 for at in $(ls "$d" | sed -n "s/^$1\.//p" | sort -n); do
  len=$(($(wc -c <"$d/$1.$at")))
  [ $((at+len)) -gt $2 ] || continue
  from=$2; [ $from -ge $at ] || from=$at
  echo $from
  tail -c +$((from-at+1)) "$d/$1.$at" | head -c 262144
  exit 0
 done
 echo $2 ;;
stop)
 if [ "$(state)" = running ]; then
  : >"$d/stop"
  i=0; while [ $i -lt 20 ] && [ "$(state)" = running ]; do sleep 1; i=$((i+1)); done
 fi
 case $(state) in running|lost)
  read -r c s <"$d/leader" 2>/dev/null && [ "$(began "$c")" = "$s" ] || c=0
  [ "$c" -gt 1 ] && ends
  for p in $(marked); do kill -s KILL "$p" 2>/dev/null; done ;;
 esac
 state ;;
remove)
 [ "$(state)" != running ] || fail "it runs there"
 rm -rf "$d" ;;
esac
`
