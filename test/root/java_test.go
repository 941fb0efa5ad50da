package root_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fetchJava asks the URL of its first argument with the key that its variable has, and says what came.
const fetchJava = `import java.net.URI;
import java.net.http.*;

public class Fetch {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(args[0])).header("X-Key", System.getenv("API_KEY")).build();
        System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }
}
`

// Programs in Java trust the authority of egress as others do, with each JDK of the host and without a word of it on stderr.
func TestJavaTrustsEgress(t *testing.T) {
	var javas []string
	found, err := filepath.Glob("/usr/lib/jvm/*/bin/javac")
	if err != nil {
		t.Fatal(err)
	}
	for _, javac := range found {
		if st, err := os.Lstat(filepath.Dir(filepath.Dir(javac))); err == nil && st.IsDir() {
			javas = append(javas, filepath.Join(filepath.Dir(javac), "java"))
		}
	}
	if len(javas) == 0 {
		t.Skip("skipped: there is no JDK below /usr/lib/jvm; apt-get install --no-install-recommends openjdk-17-jdk-headless")
	}
	k := newKeyed(t)
	value := "planted " + rand.Text()
	if r := k.try(nil, value+"\n", "secret", "set", "API_KEY", "--host", "api.test:"+k.port); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	d := k.desk(t, "--secret", "API_KEY", "--allow", "api.test:"+k.port, "--allow", "127.0.0.1:"+k.port)
	d.put(t, "Fetch.java", []byte(fetchJava), "644")
	for _, java := range javas {
		_ = k.got()
		r := d.try(java, "Fetch.java", "https://api.test:"+k.port+"/")
		if got := k.got(); r.code != 0 || r.out != "200\n" || r.err != "" || got != "api.test "+value {
			t.Errorf("%s: the host got %q: %+v", java, got, r)
		}
		// The store is whole, has the host's authorities and one more, and cannot be changed.
		keytool := filepath.Join(filepath.Dir(java), "keytool")
		list := d.sh(t, keytool+" -list -cacerts -storepass changeit 2>&1 | grep -c trustedCertEntry; "+
			"grep -c BEGIN /etc/carrel/ca-bundle.pem; [ -w /etc/carrel/java-cacerts ] || echo kept")
		if n := strings.Fields(list); len(n) < 3 || n[0] != n[1] || n[0] == "1" || n[len(n)-1] != "kept" {
			t.Errorf("%s lists\n%s", keytool, list)
		}
	}
	// Without interception there is no store of carrel's: a start does not pay for it.
	plain := k.desk(t, "--allow", "api.test:"+k.port)
	if got := plain.sh(t, "ls /etc/carrel 2>/dev/null; true"); got != "" {
		t.Errorf("without an authority there is %q", got)
	}
}
