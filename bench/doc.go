// Package bench holds what measures the proxy: a stub server that answers from bytes made beforehand, a closed-loop load
// generator on raw sockets, and a run that compares direct connections, HAProxy in TCP mode and the proxy side by side.
//
//	go run ./bench/run -seconds 2 -samples 5
//
// Numbers of one machine mean little; the ratios within one run are what counts.
package bench
