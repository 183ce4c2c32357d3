package sandbox

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

var (
	countries = []string{"BR", "CA", "CL", "DE", "DK", "ES", "FI", "FR", "GB", "IN", "IT", "JP", "KE", "MX", "NG", "NL", "PL", "PT", "SE", "US"}
	goods     = []struct {
		name  string
		price float64
	}{
		{"bicycle lamp", 24.9}, {"coffee, 1 kg", 17.5}, {"desk lamp", 59}, {"garden hose", 32}, {"headphones", 119},
		{"hiking boots", 149}, {"kettle", 39.9}, {"notebook", 4.2}, {"rain coat", 89}, {"tea, 250 g", 11.8}, {"tent", 229}, {"water bottle", 14.5},
	}
	firstDay = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
)

// order makes up order number n. Some customers order far more than others, as customers do.
func order(r *rand.Rand, n int) bson.D {
	customer := int(math.Pow(r.Float64(), 2) * sampleCustomers)
	lines := bson.A{}
	total := 0.0
	for range 1 + r.IntN(3) {
		g, count := goods[r.IntN(len(goods))], 1+r.IntN(4)
		lines = append(lines, bson.D{{Key: "item", Value: g.name}, {Key: "count", Value: count}, {Key: "price", Value: g.price}})
		total += float64(count) * g.price
	}
	return bson.D{
		{Key: "_id", Value: n},
		{Key: "customer", Value: fmt.Sprintf("c%05d", customer)},
		{Key: "country", Value: countries[customer%len(countries)]},
		{Key: "placed", Value: firstDay.Add(time.Duration(n) * 25 * time.Minute)},
		{Key: "lines", Value: lines},
		{Key: "total", Value: math.Round(total*100) / 100},
		{Key: "status", Value: []string{"placed", "paid", "sent", "received"}[r.IntN(4)]},
	}
}
