package protocol

import "context"

// Join registers an instance at a backend, then reads the closings there, then the floors, in this order: a closing that it does not see has been
// ended by a version that a floor tells of. Only when it returns nil may the instance be used. registered is called as soon as the registration is
// confirmed; see closes the gates that a closing names; floor returns an error while the map known of a namespace is below its floor.
func Join(ctx context.Context, b Board, in Instance, registered func() error, see func(Closing), floor func(Floor) error) error {
	if err := b.Register(ctx, in); err != nil {
		return err
	}
	if err := registered(); err != nil {
		return err
	}
	closings, err := b.Closings(ctx)
	if err != nil {
		return err
	}
	for _, c := range closings {
		see(c)
	}
	floors, err := b.Floors(ctx)
	if err != nil {
		return err
	}
	for _, f := range floors {
		if err := floor(f); err != nil {
			return err
		}
	}
	return nil
}
