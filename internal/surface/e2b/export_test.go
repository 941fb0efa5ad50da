package e2b

import "slices"

// Routes are the routes of the control plane, as "METHOD /path".
func Routes() []string {
	all := make([]string, 0, len(controlRoutes))
	for _, c := range controlRoutes {
		all = append(all, c.method+" "+c.path)
	}
	slices.Sort(all)
	return all
}
