package commitlog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.storage.HDFSLogStore;
import java.io.BufferedWriter;
import java.io.IOException;
import java.net.URI;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Commits of Delta tables on a local file system, of which no two ever get one version.
 *
 * Delta's own store looks whether a commit's name is free, then renames a file to it: a driver that is stopped
 * between the two overwrites, when it is woken, what another has committed meanwhile. Here the file is linked to
 * its name, which the kernel refuses when there is such a name. It also starts no programs: Hadoop's rename runs
 * `readlink` four times and `chmod` once.
 *
 * A commit is durable when it is made, and so are the data files that it adds: a record that a table has may be
 * trimmed from its log, and rows of a file that is compacted are in the new file alone. A checkpoint is durable
 * before the note that names it, after which Delta removes older commits.
 *
 * Written for the compiler that Spark ships (Janino), which knows neither a try with resources nor varargs.
 */
public class LinkLogStore extends HDFSLogStore {
    private static final String ADDS = "{\"add\":";
    private static final ObjectMapper JSON = new ObjectMapper();

    public LinkLogStore(Configuration configuration) {
        super(configuration);
    }

    /** Raises FileAlreadyExistsException, as all stores do, if there is such a commit. */
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        java.nio.file.Path name = local(path);
        if (overwrite) { // no commit, but a note such as _last_checkpoint
            if (name.endsWith("_last_checkpoint")) {
                syncCheckpoint(name.getParent());
            }
            super.write(path, actions, overwrite, configuration);
            return;
        }
        java.nio.file.Path temporary = local(createTempPath(path));
        Set<java.nio.file.Path> places = new HashSet<java.nio.file.Path>();
        OpenOption[] anew = new OpenOption[] {StandardOpenOption.CREATE_NEW};
        try {
            BufferedWriter lines = Files.newBufferedWriter(temporary, anew);
            try {
                while (actions.hasNext()) {
                    String action = (String) actions.next();
                    lines.write(action);
                    lines.write('\n');
                    if (action.startsWith(ADDS)) {
                        addPlaces(places, path.getParent().getParent(), action);
                    }
                }
            } finally {
                lines.close();
            }
            places.add(temporary);
            syncAll(places);
            link(temporary, name);
            try {
                sync(name.getParent());
            } catch (IOException unsynced) {
                // the commit is made: an error would let its writer make it again
            }
        } finally {
            Files.deleteIfExists(temporary);
        }
    }

    /** Adds the data file that an action adds to its table, and its folder, if it is on this file system. */
    private static void addPlaces(Set<java.nio.file.Path> places, Path table, String action) throws IOException {
        JsonNode parsed = (JsonNode) JSON.readTree(action);
        URI found = URI.create(parsed.at("/add/path").asText());
        if (found.getScheme() != null && !found.getScheme().equals("file")) {
            return;
        }
        java.nio.file.Path file = local(table).resolve(found.getPath());
        places.add(file);
        places.add(file.getParent());
    }

    /** Makes the files of the newest checkpoint durable. */
    private static void syncCheckpoint(java.nio.file.Path log) throws IOException {
        Set<java.nio.file.Path> places = new HashSet<java.nio.file.Path>();
        String newest = "";
        Iterator<java.nio.file.Path> each = entries(log, "*.checkpoint*").iterator();
        while (each.hasNext()) {
            java.nio.file.Path file = (java.nio.file.Path) each.next();
            String version = file.getFileName().toString().split("\\.", 2)[0];
            if (version.compareTo(newest) > 0) {
                newest = version;
                places.clear();
            }
            if (version.equals(newest)) {
                places.add(file);
            }
        }
        places.add(log);
        java.nio.file.Path parts = log.resolve("_sidecars"); // of checkpoints in the format V2
        if (Files.isDirectory(parts, new LinkOption[0])) {
            places.addAll(entries(parts, "*"));
            places.add(parts);
        }
        syncAll(places);
    }

    private static Set<java.nio.file.Path> entries(java.nio.file.Path folder, String names) throws IOException {
        Set<java.nio.file.Path> found = new HashSet<java.nio.file.Path>();
        DirectoryStream<java.nio.file.Path> files = Files.newDirectoryStream(folder, names);
        try {
            Iterator<java.nio.file.Path> each = files.iterator();
            while (each.hasNext()) {
                found.add((java.nio.file.Path) each.next());
            }
        } finally {
            files.close();
        }
        return found;
    }

    private static void syncAll(Set<java.nio.file.Path> places) throws IOException {
        Iterator<java.nio.file.Path> each = places.iterator();
        while (each.hasNext()) {
            java.nio.file.Path place = (java.nio.file.Path) each.next();
            if (Files.exists(place, new LinkOption[0])) { // RESTORE may add files that are missing
                sync(place);
            }
        }
    }

    private static void sync(java.nio.file.Path place) throws IOException {
        FileChannel opened = FileChannel.open(place, new OpenOption[] {StandardOpenOption.READ});
        try {
            opened.force(true);
        } finally {
            opened.close();
        }
    }

    private static void link(java.nio.file.Path file, java.nio.file.Path name) throws IOException {
        try {
            Files.createLink(name, file);
        } catch (FileAlreadyExistsException taken) {
            throw taken;
        } catch (FileSystemException refused) {
            throw new IOException(
                    "a commit needs a hard link, which was refused: keep the tables on a file system that has "
                            + "them, or set spark.delta.logStore.file.impl = io.delta.storage.HDFSLogStore and "
                            + "let one driver alone write them (" + refused.getMessage() + ")",
                    refused);
        }
    }

    private static java.nio.file.Path local(Path path) {
        return Paths.get(path.toUri().getPath(), new String[0]);
    }
}
