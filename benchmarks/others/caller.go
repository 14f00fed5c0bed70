// Callers that ask again once answered, with Go's own HTTP client: a goroutine for each connection.
//
//	caller URL BODY CONNECTIONS SECONDS
//
// BODY is a file. Prints how many requests were answered, in how many seconds; an answer that is not
// 200 ends it.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	url := os.Args[1]
	body, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	connections, _ := strconv.Atoi(os.Args[3])
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}

	began := time.Now()
	until := began.Add(time.Duration(seconds * float64(time.Second)))
	var count int64
	var callers sync.WaitGroup
	for i := 0; i < connections; i++ {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for time.Now().Before(until) {
				answer, err := client.Post(url, "application/json", bytes.NewReader(body))
				if err != nil {
					log.Fatal(err)
				}
				io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode != 200 {
					log.Fatal(answer.Status)
				}
				atomic.AddInt64(&count, 1)
			}
		}()
	}
	callers.Wait()
	fmt.Printf("RESULT {\"requests\": %d, \"seconds\": %f}\n", count, time.Since(began).Seconds())
}
