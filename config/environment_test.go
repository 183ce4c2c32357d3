package config

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestMain takes away what the tests of other packages are told by variables.
func TestMain(m *testing.M) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, envPrefix) {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

func TestUnknownVariablesAreRefused(t *testing.T) {
	for variable, want := range map[string]string{
		"SHARDWAY_LOG_LEVLE=warn":                           "unknown environment variable SHARDWAY_LOG_LEVLE; did you mean SHARDWAY_LOG_LEVEL?",
		"SHARDWAY_RESHAPE_LEASERENEW=1s":                    "did you mean SHARDWAY_RESHAPE_LEASE_RENEW?",
		"SHARDWAY_SLOW_REQUEST=1s":                          "did you mean SHARDWAY_LOG_SLOW_REQUEST?",
		"SHARDWAY_BACKEND=a=mongodb://h/":                   "did you mean SHARDWAY_BACKENDS?",
		"SHARDWAY_ZZZZZZZZZZZZ=1":                           "unknown environment variable SHARDWAY_ZZZZZZZZZZZZ; configs/shardway.yaml",
		"SHARDWAY_PORT=27018":                               "unknown environment variable SHARDWAY_PORT",
		"SHARDWAY_LOG_LEVEL=warn":                           "",
		"SHARDWAY_SERVER=/usr/bin/mongod":                   "",
		"SHARDWAY_SERVICE_HOST=10.0.0.1":                    "",
		"SHARDWAY_SERVICE_PORT=27017":                       "",
		"SHARDWAY_ADMIN_SERVICE_PORT_HTTP=80":               "",
		"SHARDWAY_PORT=tcp://10.0.0.1:27017":                "",
		"SHARDWAY_PORT_27017_TCP=tcp://10.0.0.1:27017":      "",
		"SHARDWAY_ADMIN_PORT_27017_TCP_ADDR=10.0.0.1":       "",
		"OTHER_SHARDWAY_THING=1":                            "",
		"=::=::":                                            "",
		"SHARDWAY_RESHAPE_CHECK_INTERVAL=1s":                "",
		"SHARDWAY_BACKENDS=x=mongodb://h1/ y=mongodb://h2/": "",
	} {
		err := CheckEnvironment([]string{"HOME=/", variable})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", variable, err, want)
		}
	}
}

func TestLoadRefusesUnknownVariables(t *testing.T) {
	t.Setenv("SHARDWAY_LISTN", "127.0.0.1:2")
	t.Setenv("SHARDWAY_LOG_FROMAT", "text")
	_, err := Load(write(t, fine), flags(t))
	if err == nil || strings.Count(err.Error(), "did you mean") != 2 {
		t.Errorf("got %v, want both named", err)
	}
}

func TestWithoutOurs(t *testing.T) {
	if got := WithoutOurs([]string{"A=1", "SHARDWAY_LISTEN=x:1", "B=SHARDWAY_", "SHARDWAY_X=1"}); !slices.Equal(got, []string{"A=1", "B=SHARDWAY_"}) {
		t.Errorf("got %q", got)
	}
}
