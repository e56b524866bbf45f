package commitlog;

import io.delta.storage.HDFSLogStore;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
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
 * Written for the compiler that Spark ships (Janino), which knows neither a try with resources nor varargs.
 */
public class LinkLogStore extends HDFSLogStore {
    public LinkLogStore(Configuration configuration) {
        super(configuration);
    }

    /** Raises FileAlreadyExistsException, as all stores do, if there is such a commit. */
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        if (overwrite) { // no commit, but a note such as _last_checkpoint
            super.write(path, actions, overwrite, configuration);
            return;
        }
        java.nio.file.Path temporary = local(createTempPath(path));
        OpenOption[] anew = new OpenOption[] {StandardOpenOption.CREATE_NEW};
        try {
            BufferedWriter lines = Files.newBufferedWriter(temporary, anew);
            try {
                while (actions.hasNext()) {
                    lines.write((String) actions.next());
                    lines.write('\n');
                }
            } finally {
                lines.close();
            }
            link(temporary, local(path));
        } finally {
            Files.deleteIfExists(temporary);
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
