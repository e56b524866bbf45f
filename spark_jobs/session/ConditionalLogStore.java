package commitlog;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits of Delta tables in an object store, of which no two ever get one version.
 *
 * Delta's own store for S3 looks whether a commit's name is free, then writes the object: two drivers that do so at
 * one time both succeed, and one commit is lost. Here the store itself decides: the request has the header
 * If-None-Match: *, which S3 and compatible stores refuse with 412 when the object exists.
 *
 * A client repeats a request whose answer was lost, and the repetition is refused because the first one was stored.
 * Hence the object is read after each failure: each commit has an id of its own in its content, so an object with
 * the same content is this commit.
 *
 * Written for the compiler that Spark ships (Janino), which knows neither a try with resources nor varargs.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
    /** Option of Hadoop's createFile, since 3.4.2, and the capability of a path for which it works. */
    private static final String IF_NONE = "fs.option.create.conditional.overwrite";

    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    /** Raises FileAlreadyExistsException, as all stores do, if there is such a commit. */
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        byte[] content = joined(actions);
        if (overwrite) { // no commit, but a note such as _last_checkpoint
            fill(files.create(path, true), content);
            return;
        }
        if (!files.hasPathCapability(path, IF_NONE)) {
            throw new IOException(
                    "a commit needs a conditional write, which the file system of " + path + " does not have: use "
                            + "Hadoop 3.4.2 or newer with fs.s3a.create.conditional.enabled = true, or set "
                            + "spark.delta.logStore.s3a.impl = io.delta.storage.S3SingleDriverLogStore and let one "
                            + "driver alone write the tables");
        }
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.recursive();
        builder.must(IF_NONE, "true");
        try {
            fill((FSDataOutputStream) builder.build(), content);
        } catch (IOException failed) {
            byte[] stored = stored(files, path);
            if (stored == null) {
                throw failed;
            }
            if (!Arrays.equals(stored, content)) {
                FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
                taken.initCause(failed);
                throw taken;
            }
        }
    }

    /** Writes an object twice, and removes it. Returns the reason why commits are not exclusive, null if they are. */
    public static String probe(Path path, Configuration configuration) throws IOException {
        ConditionalLogStore store = new ConditionalLogStore(configuration);
        FileSystem files = path.getFileSystem(configuration);
        try {
            store.write(path, Arrays.asList(new Object[] {"first"}).iterator(), Boolean.FALSE, configuration);
            try {
                store.write(path, Arrays.asList(new Object[] {"second"}).iterator(), Boolean.FALSE, configuration);
            } catch (FileAlreadyExistsException refused) {
                return null;
            }
            return "the store accepted an object in the place of another, although the request had If-None-Match";
        } catch (FileAlreadyExistsException taken) {
            return "the store refused a new object: " + taken.getMessage();
        } finally {
            files.delete(path, false);
        }
    }

    /** No object can be read before its request is complete. */
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return Boolean.FALSE;
    }

    private static byte[] joined(Iterator actions) throws IOException {
        ByteArrayOutputStream lines = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            lines.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            lines.write('\n');
        }
        return lines.toByteArray();
    }

    private static void fill(FSDataOutputStream stream, byte[] content) throws IOException {
        try {
            stream.write(content, 0, content.length);
        } catch (IOException failed) {
            stream.abort(); // a close would store the object
            throw failed;
        }
        stream.close();
    }

    /** Returns the content of an object, null if there is none. */
    private static byte[] stored(FileSystem files, Path path) throws IOException {
        FSDataInputStream stream;
        try {
            stream = files.open(path);
        } catch (FileNotFoundException absent) {
            return null;
        }
        try {
            return stream.readAllBytes();
        } catch (FileNotFoundException absent) {
            return null;
        } finally {
            stream.close();
        }
    }
}
