// Package fleet finds, installs, starts, kills and restarts database servers on this machine, for
// the sandbox, the tests and the benchmarks. It imports nothing of the product and no server:
// every server is a separate process, fetched by the machine that runs it.
//
// A real mongod comes first wherever it is found; SecantusDB stands in for it where there is none.
// docs/test-server.md lists where the two differ; [Fleet.Has] lets a test ask before it relies on
// something that a stand-in lacks.
//
// Servers listen on loopback only, on ports below the range the kernel gives to clients, and die
// with the process that started them (on Linux also when that process is killed).
package fleet
