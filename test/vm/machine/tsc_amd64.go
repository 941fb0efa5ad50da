package machine

import "time"

func rdtsc() uint64

// tscKHz measures how fast this processor's time stamp counter runs. An emulated guest
// reads that counter, and has nothing precise to measure it by: without being told it
// hangs now and then. /proc/cpuinfo shows the present clock rate instead, which is
// another number on a processor that changes its own.
func tscKHz() uint64 {
	const span = 50 * time.Millisecond
	began, from := time.Now(), rdtsc()
	time.Sleep(span)
	to, took := rdtsc(), time.Since(began)
	return (to - from) * uint64(time.Millisecond) / uint64(took)
}
