package model

// Large are configurations that are walked at random: everything goes wrong in them together.
func Large() []*Config {
	all := bounds(int(Crash), 2, int(Lapse), 1, int(LostAnswer), 1, int(Cut), 3, int(Usurp), 1, int(Timeout), 4, int(Impatience), 1)
	return []*Config{
		{Name: "split, three proxies, two owners, a transaction", Homes: splitHomes, First: oneHome, Plans: splitPlans, Owners: twoOwners, Proxies: 3, Watched: 1, Mourned: true, Joiner: true,
			Crashable: []uint8{0, firstOwner}, Lapsable: []uint8{0}, Deaf: true,
			Writes:  []Write{{0, 0, 1}, {1, 0, 2}, {0, 1, 1}, {1, 2, 1}},
			Clients: [][]Step{{writeBy(0, 0, 1, 2), writeBy(1, 2, 1, 0), readBy(0, 1)}, {writeBy(2, 1, 0, 1), readBy(1, 2)}, {{StepTransaction, 3, []uint8{0, 1, 2}}, readBy(1, 0, 1)}},
			Bounds:  all},
		{Name: "move, three proxies, two owners", Homes: movedHomes, First: oneHome, Plans: movedPlans, Owners: twoOwners, Proxies: 3, Watched: 1, Mourned: true, Swept: false,
			Crashable: []uint8{0, firstOwner}, Lapsable: []uint8{0}, Deaf: true,
			Writes:  []Write{{0, 0, 1}, {0, 0, 2}, {0, 1, 1}, {0, 2, 1}},
			Clients: [][]Step{{writeBy(0, 0, 1, 2), writeBy(1, 0, 2, 1)}, {writeBy(2, 1, 0, 1), readBy(0, 2)}, {readBy(0, 0, 1), writeBy(3, 0, 2)}},
			Bounds:  all},
		{Name: "two flips, two proxies, two owners", Homes: twiceHomes, First: oneHome, Plans: twicePlans, Owners: []Owner{{Plans: []uint8{1, 2}}, {TakeOver: true}}, Proxies: 2, Watched: 3,
			Crashable: []uint8{firstOwner},
			Writes:    []Write{{0, 0, 1}, {0, 1, 1}, {0, 1, 2}},
			Clients:   [][]Step{{writeBy(0, 0, 1, 0, 1), readBy(0, 0)}, {writeBy(1, 1, 0, 1), writeBy(2, 0, 1)}},
			Bounds:    bounds(int(Crash), 1, int(LostAnswer), 1, int(Cut), 4, int(Usurp), 1, int(Timeout), 2, int(Impatience), 1)},
	}
}
