// Package instructions counts the machine instructions of a piece of code, for tests that hold it against a committed number. It needs no counter of the
// processor, which many machines do not have or do not show: a copy of the test's program runs the code one instruction at a time, under ptrace.
// The number is the same in every run as far as the code does the same; the kernel's own instructions are not in it.
package instructions

import "errors"

// ErrUnavailable says that this machine, or this kind of machine, does not let a program count another's instructions.
var ErrUnavailable = errors.New("instructions: programs cannot be traced here")

// environment tells the copy what it is to run.
const environment = "SHARDWAY_COUNT_INSTRUCTIONS"
