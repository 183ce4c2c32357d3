package model

import "github.com/shardway/shardway/shardkey"

var (
	whole = shardkey.Range{}

	// moved has one input on A; each attempt has an output on B of its own.
	movedHomes = []Home{{"A", "c@1.0.0"}, {"B", "c@2.0.0"}, {"B", "c@3.0.0"}}
	movedPlans = []Plan{{}, {Inputs: []uint8{0}, Outputs: []Place{{1, whole}}}, {Inputs: []uint8{0}, Outputs: []Place{{2, whole}}}}
	// split has one input on A, the lower half stays there, the upper goes to B.
	splitHomes = []Home{{"A", "c@1.0.0"}, {"A", "c@2.0.0"}, {"B", "c@2.0.1"}, {"A", "c@3.0.0"}, {"B", "c@3.0.1"}}
	splitPlans = []Plan{{}, {Inputs: []uint8{0}, Outputs: []Place{{1, halves[0]}, {2, halves[1]}}}, {Inputs: []uint8{0}, Outputs: []Place{{3, halves[0]}, {4, halves[1]}}}}
	// twice moves there and back, to fresh names.
	twiceHomes = []Home{{"A", "c@1.0.0"}, {"B", "c@2.0.0"}, {"A", "c@3.0.0"}}
	twicePlans = []Plan{{}, {Inputs: []uint8{0}, Outputs: []Place{{1, whole}}}, {Inputs: []uint8{1}, Outputs: []Place{{2, whole}}}}
	dropHomes  = []Home{{"A", "c"}}
	dropPlans  = []Plan{{}, {Inputs: []uint8{0}, Drop: true}}
	oneHome    = []Place{{0, whole}}
	// oneOwner runs one reshape; twoOwners have a second that takes over and begins anew.
	oneOwner  = []Owner{{Plans: []uint8{1}}}
	heirOnly  = []Owner{{Plans: []uint8{1}}, {TakeOver: true}}
	twoOwners = []Owner{{Plans: []uint8{1}}, {TakeOver: true, Plans: []uint8{2}}}
)

func writeBy(w uint8, proxies ...uint8) Step  { return Step{StepWrite, w, proxies} }
func readBy(doc uint8, proxies ...uint8) Step { return Step{StepRead, doc, proxies} }

// bounds makes bounds of pairs.
func bounds(pairs ...int) (b [faults]uint8) {
	for i := 0; i < len(pairs); i += 2 {
		b[pairs[i]] = uint8(pairs[i+1])
	}
	return b
}

// Configs are what is explored whole.
func Configs() []*Config {
	return []*Config{
		{Name: "move, two proxies, cut requests retried", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 1, 0)}, {readBy(0, 1)}}, Bounds: bounds(int(Cut), 2)},
		{Name: "split, output on the input's backend", Homes: splitHomes, First: oneHome, Plans: splitPlans, Owners: oneOwner, Proxies: 1, Watched: 1,
			Writes: []Write{{0, 0, 1}, {1, 1, 1}}, Clients: [][]Step{{writeBy(0, 0, 0)}, {writeBy(1, 0, 0), readBy(0, 0)}}, Bounds: bounds(int(Cut), 2)},
		{Name: "the owner crashes, another takes over", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: twoOwners, Proxies: 1, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 0)}}, Crashable: []uint8{firstOwner}, Bounds: bounds(int(Crash), 1, int(Cut), 1)},
		{Name: "the owner stalls, another takes over", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: twoOwners, Proxies: 1, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0)}}, Bounds: bounds(int(Usurp), 1)},
		{Name: "two writes of one document, one cut", Copied: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1,
			Writes: []Write{{0, 0, 1}, {0, 1, 1}}, Clients: [][]Step{{writeBy(0, 0, 1)}, {writeBy(1, 1)}}, Bounds: bounds(int(Cut), 1)},
		{Name: "the owner crashes, another cleans up", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: heirOnly, Proxies: 1, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0)}}, Crashable: []uint8{firstOwner}, Bounds: bounds(int(Crash), 1, int(LostAnswer), 1)},
		{Name: "a member's answer is lost, and its lease", Copied: true, Brief: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 1, Watched: 1, Deaf: true, Mourned: true, Lapsable: []uint8{0},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0)}}, Bounds: bounds(int(LostAnswer), 1, int(Timeout), 1, int(Lapse), 1)},
		{Name: "a sweep", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 1, Watched: 1, Swept: true,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 0)}}, Bounds: bounds(int(Cut), 1)},
		{Name: "late writes of a stalled owner", Copied: true, Brief: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: twoOwners, Proxies: 1, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0)}}, Bounds: bounds(int(Usurp), 1, int(LostAnswer), 1)},
		{Name: "a lease lapses under a write", Copied: true, Brief: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 1, Watched: 1, Mourned: true, Lapsable: []uint8{0},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 0)}}, Bounds: bounds(int(Lapse), 1)},
		{Name: "a write is sent again under a new lease", Copied: true, Brief: true, SendsAgain: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 1, Watched: 1, Mourned: true, Lapsable: []uint8{0},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0)}}, Bounds: bounds(int(Lapse), 1, int(Cut), 1)},
		{Name: "a lease lapses under a read", Copied: true, Brief: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1, Mourned: true, Lapsable: []uint8{0},
			Writes: []Write{{0, 1, 1}}, Clients: [][]Step{{readBy(0, 0)}, {writeBy(0, 1)}}, Bounds: bounds(int(Lapse), 1)},
		{Name: "a proxy crashes, its client goes to another", Copied: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1, Mourned: true, Crashable: []uint8{0},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 1)}, {readBy(0, 1)}}, Bounds: bounds(int(Crash), 1, int(Timeout), 1)},
		{Name: "a proxy joins", Copied: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1, Joiner: true,
			Writes: []Write{{0, 0, 1}, {0, 1, 1}}, Clients: [][]Step{{writeBy(0, 1)}, {writeBy(1, 0)}}},
		{Name: "a transaction, its proxy crashes", Copied: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1, Mourned: true, Crashable: []uint8{0},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{{StepTransaction, 0, []uint8{0, 1}}}}, Bounds: bounds(int(Crash), 1)},
		{Name: "a transaction, its proxy's lease lapses", Copied: true, Brief: true, Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1, Mourned: true, Lapsable: []uint8{0},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{{StepTransaction, 0, []uint8{0, 1}}}}, Bounds: bounds(int(Lapse), 1, int(Cut), 1)},
		{Name: "a collection without a map is dropped", Homes: dropHomes, Plans: dropPlans, Owners: heirOnly, Proxies: 2, Watched: 1, Crashable: []uint8{firstOwner},
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 1)}, {readBy(0, 1)}}, Bounds: bounds(int(Crash), 1, int(Cut), 1)},
		{Name: "two flips", Homes: twiceHomes, First: oneHome, Plans: twicePlans, Owners: []Owner{{Plans: []uint8{1, 2}}}, Proxies: 2, Watched: 3,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 1, 0)}}, Bounds: bounds(int(Cut), 2)},
		{Name: "a proxy burns", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: oneOwner, Proxies: 2, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0, 1)}}, Bounds: bounds(int(Impatience), 1, int(Cut), 1)},
		{Name: "two reshapes, a proxy that lags", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: []Owner{{Plans: []uint8{1, 2}}}, Proxies: 2, Watched: 1,
			Writes: []Write{{0, 0, 1}}, Clients: [][]Step{{writeBy(0, 0)}}, Bounds: bounds(int(Timeout), 1)},
	}
}
