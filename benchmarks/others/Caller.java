import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

/**
 * Callers that ask again once answered, with Java's own HTTP client: a thread for each connection.
 *
 * <p>{@code java Caller.java URL BODY CONNECTIONS SECONDS}; BODY is a file. Prints how many requests
 * were answered, in how many seconds; an answer that is not 200 ends it.
 */
class Caller {
    public static void main(String[] arguments) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofByteArray(Files.readAllBytes(Path.of(arguments[1]))))
                .build();
        int connections = Integer.parseInt(arguments[2]);
        long began = System.nanoTime();
        long until = began + (long) (Double.parseDouble(arguments[3]) * 1e9);
        HttpClient client = HttpClient.newHttpClient();
        ExecutorService threads = Executors.newFixedThreadPool(connections, Caller::daemon);
        var calls = IntStream.range(0, connections)
                .mapToObj(one -> threads.submit(() -> call(client, request, until)))
                .toList();
        long count = 0;
        for (Future<Long> one : calls) {
            count += one.get();
        }
        System.out.printf(Locale.ROOT, "RESULT {\"requests\": %d, \"seconds\": %f}%n",
                count, (System.nanoTime() - began) / 1e9);
    }

    /** Main may fail while others still ask. */
    static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    static long call(HttpClient client, HttpRequest request, long until) throws Exception {
        long count = 0;
        while (System.nanoTime() < until) {
            var answer = client.send(request, BodyHandlers.ofByteArray());
            if (answer.statusCode() != 200) {
                throw new IllegalStateException(new String(answer.body()));
            }
            count++;
        }
        return count;
    }
}
