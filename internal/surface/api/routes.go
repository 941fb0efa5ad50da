package api

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// route is how a path is served.
type route struct {
	// maxRequest bounds one request message, in bytes after decompression.
	maxRequest int
	// stream: the exchange may last, so the body has no deadline.
	stream bool
	// counted: it may last, and is bounded with the streams of its caller. A hand-over of
	// descriptors is bounded as the connection that it takes.
	counted bool
}

// waits are the procedures that answer once, at an end that may be far.
var waits = map[string]bool{"CommandService/Wait": true}

// served is the path under which a request's is found in the table: its own, or that of terminals, which goes on with names.
func served(path string) string {
	if strings.HasPrefix(path, terminalsPath) {
		return terminalsPath
	}
	return path
}

// metricsPath is where counters are read, as Prometheus does.
const metricsPath = "/metrics"

// routes are everything that the API serves: the calls of the table of operations, the
// hand-over of descriptors and the metrics. Who may do what is the gate's decision.
var routes = func() map[string]route {
	m := map[string]route{
		fdapi.Path:    {operation.Large, true, false},
		metricsPath:   {operation.Small, false, false},
		terminalsPath: {operation.Small, true, true},
	}
	for i := range operation.Table {
		for _, c := range operation.Table[i].Calls {
			m[fdapi.Prefix+c.Path] = route{c.MaxRequest, c.Stream, c.Stream || waits[c.Path]}
		}
	}
	return m
}()
