// Package member is this process's registration at each backend. An instance has a lease that it renews; a request
// looks at the lease before it is sent and again after its reply, so that nothing is passed on that was done after somebody could
// have counted the instance as gone. The member watches the closings that are written on a backend: it closes the
// gates they name, waits until no request of its own is inside, and answers.
//
// All of it lies in the database "shardway_member" on the backend that it concerns.
package member
