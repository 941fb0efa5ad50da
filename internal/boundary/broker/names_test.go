package broker_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestNamesAreExact: a member that is repeated, in another case or unknown ends the connection, at
// every depth of every operation's params.
func TestNamesAreExact(t *testing.T) {
	const limits = `{"memory_bytes":67108864,"pids":64}`
	for method, params := range map[string]string{
		"hello":       `{"version":1}`,
		"create":      `{"name":"ws-0123abcd","key_digest":"` + digest + `","limits":` + limits + `,"start":false}`,
		"start":       `{"name":"ws-0123abcd"}`,
		"stop":        `{"name":"ws-0123abcd"}`,
		"destroy":     `{"name":"ws-0123abcd","purge":true,"unused":false}`,
		"list":        `{"after":"ws-0123abcd"}`,
		"report":      `{"name":"ws-0123abcd"}`,
		"pause":       `{"name":"ws-0123abcd"}`,
		"resume":      `{"name":"ws-0123abcd"}`,
		"update":      `{"name":"ws-0123abcd","limits":` + limits + `}`,
		"stats":       `{"name":"ws-0123abcd"}`,
		"forget":      `{"name":"ws-0123abcd","id":1880000000}`,
		"countersign": `{"origin":"log","size":1,"root":"` + root + `","old":0,"proof":[]}`,
	} {
		for _, member := range regexp.MustCompile(`"([a-z_]+)":`).FindAllStringSubmatch(params, -1) {
			name := member[0]
			for what, by := range map[string]string{
				"repeated":        name + "null," + name,
				"in another case": strings.ToUpper(name),
				"also in another": strings.ToUpper(name) + "null," + name,
				"escaped":         fmt.Sprintf(`"\u%04x%s":`, member[1][0], member[1][1:]),
				"unknown":         `"x":null,` + name,
			} {
				r := newRig(t, method != "hello")
				r.host.reset()
				changed := strings.Replace(params, name, by, 1)
				_, err := call[any](t, r.conn, method, json.RawMessage(changed))
				select {
				case <-r.conn.Done():
				case <-time.After(5 * time.Second):
					t.Fatalf("%s: %s was accepted: %s: %v", method, what, changed, err)
				}
				if did := r.host.reset(); len(did) > 0 {
					t.Errorf("%s: %s did %v", method, changed, did)
				}
			}
		}
	}
}
