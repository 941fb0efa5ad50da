package remotepatch

// script is what a shell on a remote host runs: sh -c script carrel-patch VERB … It needs a shell of POSIX and the coreutils of
// GNU, whose cp keeps attributes. What it works on comes on its standard input, never in its arguments. Its verbs:
//
//	read DIR…        paths, one a line; tells what is there, of those below a DIR or the directory in which it runs: see parse
//	apply ID         a change: see send. All files are changed, or none if it ends with another status than 0
//	undo NEW OLD     undoes the change OLD, as the change NEW
//	list             tells the changes that are kept
//
// A change is a directory below ~/.local/state/carrel/remote-patches, so that this machine can be a remote host of its own:
//
//	manifest   two lines for each name: "ACTION OLD NEW MODE SIZE FROM", and its path. OLD and NEW are digests. MODE is octal, with
//	           m before it if the umask is taken off. FROM is the number of the name whose attributes a new file gets, = if those
//	           of N.new are meant. What there is none of is -
//	N.new      the new content of name N; N.old, what was there; N.ino, the inode of the new file; N.after, its mode and owner
//	made       directories that were made
//	undoes     the change that it undoes
//	state      preparing: temporary files are made beside the files; committing: names are exchanged, one after the other; changed:
//	           all are exchanged; done; undone; conflict: it was taken back, but for files that something else had changed, which
//	           left has
//
// A change whose state is none of the last three has no process any more if nobody holds the lock: whatever comes next takes it
// back, or finishes one that is changed. A path is entered as its directory, which must be the same without links, and its
// last part alone is worked on there.
const script = `LC_ALL=C; export LC_ALL; unset CDPATH; trap '' HUP INT PIPE
verb=$1; id=$2; other=$3
base=$HOME/.local/state/carrel/remote-patches; d=$base/$id
most=5242880; all=12582912
keep=--preserve=mode,ownership,timestamps,xattr
say() { printf '%s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }
began() { set -- $(sed 's/^.*) //' "/proc/$1/stat" 2>/dev/null); [ "$1" = Z ] || echo "${20}"; }
alive() { [ -n "$1" ] && kill -s 0 "$1" 2>/dev/null && [ "$(began "$1")" = "$2" ]; }
sum() { set -- $(sha256sum <"$1"); echo "$1"; }
owned() { stat -c '%a %u %g' -- "$1"; }
inode() { stat -c %i -- "$1"; }
gone() { [ ! -e "$1" ] && [ ! -L "$1" ]; }
final() { case $(cat "$1/state" 2>/dev/null) in done|undone|conflict) return 0; esac; return 1; }
mark() { echo "$2" >"$1/state.new" && sync -- "$1/state.new" && mv -fT -- "$1/state.new" "$1/state" && sync -- "$1"; }
note() { mark "$d" "$1"; }
enter() { cd -P -- "$1" 2>/dev/null && [ "$(pwd -P)" = "$1" ]; }
at() {
 p=${path%/*}; f=./${path##*/}; t=./.carrel-$id-$i
 enter "${p:-/}" || fail "cannot change $path: its directory is not there, or a part of the path is a symbolic link; name the file itself"
}
why() {
 if [ -L "$1" ]; then echo "it is a symbolic link; name the file itself"; return; fi
 if [ -d "$1" ]; then echo "it is a directory"; return; fi
 if [ ! -f "$1" ]; then echo "it is a device, a pipe or a socket"; return; fi
 set -- "$1" $(stat -c '%h %a %s' -- "$1")
 if [ "$2" != 1 ]; then echo "it has $2 names (hard links), and only one of them would change"; return; fi
 if [ ${#3} -gt 3 ]; then echo "it has the mode $3, of which more than the nine permission bits are set"; return; fi
 if [ "$4" -gt $most ]; then echo "it has $4 bytes, and at most $most are taken"; return; fi
 [ -r "$1" ] || echo "it cannot be read"
}
plain() { w=$(why "$f"); [ -z "$w" ] || fail "cannot change $path: $w"; }
is() { [ "$(sum "$f")" = "$1" ] || fail "cannot change $path: it changed meanwhile; read it again"; }
each() {
 i=0
 while IFS=' ' read -r act old new mode size from <&3 && IFS= read -r path <&3; do
  "$1" || return 1
  i=$((i+1))
 done 3<"$d/manifest"
}
lock() {
 n=0
 until (set -C; echo "$$ $(began $$)" >"$base/lock") 2>/dev/null; do
  p=; s=; read -r p s <"$base/lock" 2>/dev/null
  if [ $n -ge 10 ] || { [ -n "$p" ] && ! alive "$p" "$s"; }; then
   alive "$p" "$s" && fail "cannot change files: another change is under way; try again"
   n=$((n+1)); [ $n -lt 30 ] || fail "cannot change files: $base/lock cannot be taken"
   mv -fT -- "$base/lock" "$base/lock.$$" 2>/dev/null || continue
   q=; read -r q s <"$base/lock.$$"
   [ "$q" = "$p" ] || ln -T -- "$base/lock.$$" "$base/lock" 2>/dev/null
   rm -f -- "$base/lock.$$"
  else
   n=$((n+1)); sleep 1
  fi
 done
 trap 'rm -f -- "$base/lock"' EXIT
}
ready() {
 cp --version 2>/dev/null | grep -q coreutils || fail "the host has no GNU coreutils, whose cp keeps attributes; propose commands"
 [ -e "$base" ] || { [ -n "$1" ] || return 0; (umask 077; mkdir -p "$base") || exit 1; }
 [ ! -L "$base" ] && [ -O "$base" ] && chmod 700 "$base" || fail "$base is a symbolic link or another user's; remove it"
 lock
 for x in "$base"/p-*; do
  [ -d "$x" ] && [ ! -L "$x" ] && ! final "$x" || continue
  ( d=$x; id=${x##*/}; back && echo "recovered $id $(cat "$d/left" 2>/dev/null | tr '\n' ';')" ) || exit 1
 done
}
mk() {
 [ -n "$1" ] && gone "$1" || return 0
 mk "${1%/*}" || return 1
 say "$1" >>"$d/made"
 p=${1%/*}; ( enter "${p:-/}" && mkdir -- "./${1##*/}" ) || { say "cannot make the directory $1" >&2; return 1; }
}
dirs() { [ $act != create ] || mk "${path%/*}"; }
check() { (
 at
 if [ $act = create ]; then gone "$f" || fail "cannot make $path: something is there already"; exit; fi
 plain; is "$old"
 [ ! -e "$d/$i.before" ] || [ "$(owned "$f")" = "$(cat "$d/$i.before")" ] || fail "cannot change $path: its mode or owner changed meanwhile"
 cp $keep -- "$f" "$d/$i.old" && [ "$(sum "$d/$i.old") $(owned "$d/$i.old")" = "$old $(owned "$f")" ] && sync -- "$d/$i.old" ||
  fail "cannot keep what $path is"
) }
temp() { (
 [ $act != remove ] || exit 0
 at
 gone "$t" || exit 1
 like=
 if [ $act = replace ]; then like=$f; fi
 case $from in -) ;; =) like=$d/$i.new ;; *) like=$d/$from.old ;; esac
 if [ -n "$like" ]; then
  cp $keep -- "$like" "$t" && [ "$(owned "$like")" = "$(owned "$t")" ] || fail "cannot change $path: its owner or attributes cannot be kept"
  if [ "$from" != = ]; then w=$(owned "$t"); chmod u+w -- "$t" && cat "$d/$i.new" >"$t" && chmod "${w%% *}" -- "$t" || exit 1; fi
  set -- $(ls -ld -- "$like") ; a=${1#??????????}; set -- $(ls -ld -- "$t")
  [ "${1#??????????}" = "$a" ] || fail "cannot change $path: its access list cannot be kept"
 else
  cat "$d/$i.new" >"$t" || exit 1
 fi
 case $mode in
 -) ;;
 m*) chmod "$(printf %o $((0${mode#m} & ~0$(umask))))" -- "$t" || exit 1 ;;
 *) chmod "$mode" -- "$t" || exit 1 ;;
 esac
 [ "$(sum "$t")" = "$new" ] && inode "$t" >"$d/$i.ino" && owned "$t" >"$d/$i.after" && sync -- "$t" "$d/$i.ino"
) || { say "cannot change $path: its new content cannot be written beside it" >&2; return 1; }; }
swap() { (
 at
 case $act in
 create) ln -T -- "$t" "$f" || fail "cannot make $path: something is there already"; rm -f -- "$t" ;;
 replace) plain; is "$old"; mv -fT -- "$t" "$f" ;;
 remove) plain; is "$old"; mv -nT -- "$f" "$t"
  gone "$f" && [ "$(sum "$t")" = "$old" ] || { mv -nT -- "$t" "$f"; fail "cannot remove $path: it changed meanwhile"; } ;;
 esac && sync -- .
) }
clean() { ( at 2>/dev/null && rm -f -- "$t" && sync -- . ) || :; }
left() { say "$path was left as it is: $1; what it was is in $d/$i.old" >>"$d/left"; }
mine() { [ -f "$f" ] && [ ! -L "$f" ] && [ -e "$d/$i.ino" ] && [ "$(inode "$f")" = "$(cat "$d/$i.ino")" ] && [ "$(sum "$f")" = "$new" ]; }
asis() { [ -f "$f" ] && [ ! -L "$f" ] && [ "$(sum "$f")" = "$old" ]; }
restore() { rm -f -- "$t" && cp $keep -- "$d/$i.old" "$t" && [ "$(sum "$t")" = "$old" ] && sync -- "$t" && mv "$1" -T -- "$t" "$f"; }
putback() { (
 p=${path%/*}; f=./${path##*/}; t=./.carrel-$id-$i
 enter "${p:-/}" || { [ $act = create ] || left "its directory is gone"; exit 0; }
 case $act in
 create) if mine; then rm -f -- "$f"; elif gone "$t" && ! gone "$f"; then left "something else changed it"; fi; rm -f -- "$t" ;;
 replace)
  if mine; then restore -f || exit 1
  elif asis || { [ -e "$t" ] && [ "$(inode "$t")" = "$(cat "$d/$i.ino" 2>/dev/null)" ]; }; then rm -f -- "$t"
  else left "something else changed it"; rm -f -- "$t"; fi ;;
 remove)
  if gone "$f"; then
   if [ -f "$t" ] && [ "$(sum "$t")" = "$old" ]; then mv -nT -- "$t" "$f"; else restore -n; fi || exit 1
  else
   gone "$t" || asis || left "something else changed it"
   rm -f -- "$t"
  fi ;;
 esac
 sync -- .
) }
unmake() { [ ! -e "$1" ] || sed '1!G;h;$!d' "$1" | while IFS= read -r m; do rmdir -- "$m" 2>/dev/null; done; }
finish() {
 each clean
 if [ -e "$d/undoes" ]; then
  u=$base/$(cat "$d/undoes")
  unmake "$u/made"; [ ! -e "$u/state" ] || mark "$u" undone || return 1
 fi
 rm -f -- "$d"/*.new "$d"/*.ino
 note done
}
back() {
 case $(cat "$d/state" 2>/dev/null) in
 changed) finish; return ;;
 committing) each putback || { echo "cannot take back $id: see $d" >&2; return 1; } ;;
 preparing) each clean ;;
 esac
 unmake "$d/made"
 if [ -e "$d/left" ]; then note conflict; else rm -f -- "$d/state" && sync -- "$d" && rm -rf -- "$d"; fi
}
abort() {
 back || exit 1
 [ ! -e "$d/left" ] || cat "$d/left" >&2
 exit 1
}
run() {
 sync -- "$d/manifest" "$d" || exit 1
 note preparing && each dirs && each check && each temp || abort
 note committing || abort
 each swap || abort
 note changed && finish
}
case $verb in
read)
 shift; here=$(pwd -P); ready
 say "dir $here"; say "dir $base"
 total=0
 while IFS= read -r name; do
  case $name in /*) path=$name ;; *) path=${here%/}/$name ;; esac
  in=; case $path in "${here%/}"/*) [ "$here" = / ] || in=1 ;; esac
  for r; do case $path in "$r"/*) in=1 ;; esac; done
  [ -n "$in" ] || { echo "refused files are changed below $here $* alone; propose a command"; continue; }
  up=${path%/*}; while [ -n "$up" ] && gone "$up"; do up=${up%/*}; done
  f=./${path##*/}
  ( enter "${up:-/}" || { echo "refused its directory is none, or a part of its path is a symbolic link; name the file itself"; exit 2; }
   if [ "$up" != "${path%/*}" ] || gone "$f"; then echo absent; exit 2; fi
   w=$(why "$f"); [ -z "$w" ] || { echo "refused $w"; exit 2; }
   set -- $(stat -c '%a %s' -- "$f")
   [ $((total+$2)) -le $all ] || fail "the files have more than $all bytes together; change less at once"
   echo "file $1 $2"; head -c "$2" -- "$f"; echo; exit 0 )
  case $? in 0) total=$((total+$(stat -c %s -- "$path"))) ;; 1) exit 1 ;; esac
 done
 echo end ;;
apply)
 read -r count || exit 1
 ready make
 (umask 077; mkdir -- "$d") || exit 1
 n=0
 while [ $n -lt "$count" ]; do
  IFS= read -r line && IFS= read -r path || { rm -rf -- "$d"; fail "the change came in part only"; }
  printf '%s\n%s\n' "$line" "$path" >>"$d/manifest"; n=$((n+1))
 done
 (umask 077; cat >"$d/data")
 part() {
  [ "$act" != remove ] || return 0
  (umask 077; tail -c "+$from_at" -- "$d/data" | head -c "$size" >"$d/$i.new")
  from_at=$((from_at+size))
  [ "$(sum "$d/$i.new")" = "$new" ]
 }
 from_at=1
 [ $(($(wc -l <"$d/manifest"))) = $((count*2)) ] && each part && [ $(($(stat -c %s -- "$d/data")+1)) = $from_at ] ||
  { rm -rf -- "$d"; fail "the change came in part only"; }
 rm -f -- "$d/data"
 run && echo "made $id" ;;
undo)
 ready; src=$base/$other
 [ -d "$src" ] && [ ! -L "$src" ] || fail "there is no record of it"
 case $(cat "$src/state") in
 undone) fail "it was undone before" ;;
 done) ;;
 *) fail "it was taken back, but for some files; see $src" ;;
 esac
 (umask 077; mkdir -- "$d") || exit 1
 reverse() {
  [ ! -e "$src/$i.after" ] || cp -- "$src/$i.after" "$d/$i.before" || return 1
  case $act in
  create) set -- remove "$new" - - 0 - ;;
  replace) set -- replace "$new" "$old" - 0 = ;;
  remove) set -- create - "$old" - 0 = ;;
  esac
  [ "$1" = remove ] || { cp $keep -- "$src/$i.old" "$d/$i.new" && [ "$(sum "$d/$i.new")" = "$old" ]; } || return 1
  printf '%s\n%s\n' "$*" "$path" >>"$d/manifest.undo"
 }
 cp -- "$src/manifest" "$d/manifest" && each reverse && mv -f -- "$d/manifest.undo" "$d/manifest" ||
  { rm -rf -- "$d"; fail "what it needs is damaged"; }
 echo "$other" >"$d/undoes"
 run && echo "made $id" ;;
list)
 ready
 n=0
 for d in "$base"/p-*; do
  [ -d "$d" ] && [ ! -L "$d" ] && final "$d" || continue
  n=$((n+1)); [ $n -le 1000 ] || { echo more; break; }
  echo "change ${d##*/} $(cat "$d/state")"
  sed -n 'n;p' "$d/manifest"
 done
 echo end ;;
esac
`
