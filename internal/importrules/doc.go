// Package importrules holds the test that keeps data flowing one way through the packages.
package importrules
