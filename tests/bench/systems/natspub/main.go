// natspub publishes to a JetStream stream with three replicas and prints one JSON line.
//
//	natspub -urls nats://127.0.0.1:4222,nats://127.0.0.1:4223 -mode sync -c 64 -size 1024 -d 3s
//
// sync: -c publishes in flight, each waits for its acknowledgement. async: one publisher with at most -c
// messages without an acknowledgement. The stream's leader is addressed directly: -urls has the servers n1,
// n2, ... in this order.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const startTries = 60 // of half a second each: a new cluster elects a leader first

func connect(url string, window int) jetstream.JetStream {
	connection, err := nats.Connect(url, nats.Timeout(10*time.Second))
	if err != nil {
		log.Fatalf("connect to %s: %v", url, err)
	}
	stream, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(window))
	if err != nil {
		log.Fatal(err)
	}
	return stream
}

func create(js jetstream.JetStream, name string) jetstream.Stream {
	var last error
	for range startTries {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage, Replicas: 3})
		cancel()
		if err == nil {
			return stream
		}
		last = err
		time.Sleep(500 * time.Millisecond)
	}
	log.Fatal("create the stream: ", last)
	return nil
}

// leaderOf returns the URL of the stream's leader: server nK has the K-th URL.
func leaderOf(stream jetstream.Stream, urls []string) string {
	for range startTries {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		info, err := stream.Info(ctx)
		cancel()
		if err == nil && info.Cluster != nil {
			for number, url := range urls {
				if info.Cluster.Leader == fmt.Sprintf("n%d", number+1) {
					return url
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return urls[0]
}

type result struct {
	took []time.Duration
	errs int
}

func publishSync(js jetstream.JetStream, subject string, value []byte, end time.Time) (found result) {
	for time.Now().Before(end) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		_, err := js.Publish(ctx, subject, value)
		cancel()
		if err != nil {
			found.errs++
			fmt.Fprintln(os.Stderr, err)
		} else {
			found.took = append(found.took, time.Since(began))
		}
	}
	return found
}

func publishAsync(js jetstream.JetStream, subject string, value []byte, window int, end time.Time) (found result) {
	type sent struct {
		future jetstream.PubAckFuture
		began  time.Time
	}
	waiting := make(chan sent, window)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for each := range waiting {
			select {
			case <-each.future.Ok():
				found.took = append(found.took, time.Since(each.began))
			case <-each.future.Err():
				found.errs++
			case <-time.After(30 * time.Second):
				found.errs++
			}
		}
	}()
	for time.Now().Before(end) {
		future, err := js.PublishAsync(subject, value, jetstream.WithStallWait(30*time.Second))
		if err != nil {
			log.Fatal(err)
		}
		waiting <- sent{future, time.Now()}
	}
	close(waiting)
	<-done
	return found
}

func main() {
	list := flag.String("urls", "", "servers n1, n2, ... in this order, by commas")
	mode := flag.String("mode", "sync", "sync or async")
	window := flag.Int("c", 1, "publishes in flight")
	size := flag.Int("size", 1024, "bytes of a message")
	duration := flag.Duration("d", 3*time.Second, "measured time")
	flag.Parse()
	urls := strings.Split(*list, ",")
	subject := fmt.Sprintf("s%d", time.Now().UnixNano())
	leader := leaderOf(create(connect(urls[0], 1), subject), urls)
	value := make([]byte, *size)
	began := time.Now()
	end := began.Add(*duration)
	var found result
	if *mode == "async" {
		found = publishAsync(connect(leader, *window), subject, value, *window, end)
	} else {
		connections := make([]jetstream.JetStream, min(8, *window))
		for number := range connections {
			connections[number] = connect(leader, 1)
		}
		began = time.Now()
		end = began.Add(*duration)
		results := make([]result, *window)
		var group sync.WaitGroup
		for number := range results {
			group.Go(func() {
				results[number] = publishSync(connections[number%len(connections)], subject, value, end)
			})
		}
		group.Wait()
		for _, each := range results {
			found.took = append(found.took, each.took...)
			found.errs += each.errs
		}
	}
	seconds := time.Since(began).Seconds()
	if len(found.took) == 0 {
		log.Fatal("no publish succeeded")
	}
	slices.Sort(found.took)
	at := func(share float64) float64 {
		return float64(found.took[int(share*float64(len(found.took)-1))].Microseconds()) / 1000
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"records": len(found.took), "errors": found.errs,
		"records_per_s": float64(len(found.took)) / seconds, "p50_ms": at(.5), "p99_ms": at(.99)})
}
