package backend

// queue is a FIFO of calls in a ring that grows as needed. Its zero value is empty.
type queue struct {
	ring    []*Call // its length is a power of two
	head, n int
	// abandoned counts those of them that nobody waits for any more.
	abandoned int
	// handed counts those that were given away.
	handed int
}

func (q *queue) push(k *Call) {
	if q.n == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = k
	q.n++
}

func (q *queue) pop() *Call {
	k := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return k
}

// at returns the i-th from the head.
func (q *queue) at(i int) *Call { return q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *queue) grow() {
	ring := make([]*Call, max(4, 2*len(q.ring)))
	for i := range q.n {
		ring[i] = q.at(i)
	}
	q.ring, q.head = ring, 0
}
